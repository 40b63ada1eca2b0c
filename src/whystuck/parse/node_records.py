"""The JSON artifacts of nodes and of memory, as the tables that rules read."""

from __future__ import annotations

from msgspec.structs import replace

from whystuck.evidence.nodes.checks import CheckProblem, CheckResult, ChecksRecord
from whystuck.evidence.nodes.devices import DevicesRecord, DeviceState
from whystuck.evidence.nodes.records import (
    ClaimsRecord,
    CpuRecord,
    GarbageRecord,
    HostRecord,
    MemoryRecord,
)
from whystuck.evidence.nodes.resources import (
    CpuPoint,
    CpuSeries,
    GarbagePoint,
    GarbageSeries,
    HostState,
    MemoryPoint,
    MemorySeries,
    RankClaim,
)
from whystuck.parse.errors import ParseError
from whystuck.parse.records import decode_record, take_fields

# A node with very many disks and devices has some hundred checks.
_MAX_CHECKS = 2000
_MAX_PROBLEMS = 2000
_MAX_CHECK_TEXT = 2000


def parse_memory(data: bytes, *, rank: int, artifact: str) -> MemorySeries:
    """Read ``memory.json`` of a rank."""
    record = decode_record(data, MemoryRecord)
    return take_fields(
        MemorySeries,
        record,
        rank=rank,
        points=tuple(MemoryPoint(*point) for point in record.points),
        worker_pids=tuple(record.worker_pids),
        artifact=artifact,
    )


def parse_cpu(data: bytes, *, rank: int, artifact: str) -> CpuSeries:
    """Read ``cpu.json`` of a rank."""
    return make_cpu(decode_record(data, CpuRecord), rank=rank, artifact=artifact)


def make_cpu(record: CpuRecord, *, rank: int, artifact: str = "") -> CpuSeries:
    """Make a series of what was written, or will be."""
    points = tuple(CpuPoint(*point) for point in record.points)
    return take_fields(CpuSeries, record, rank=rank, points=points, artifact=artifact)


def parse_garbage(data: bytes, *, rank: int, artifact: str) -> GarbageSeries:
    """Read ``garbage.json`` of a rank."""
    return make_garbage(decode_record(data, GarbageRecord), rank=rank, artifact=artifact)


def make_garbage(record: GarbageRecord, *, rank: int, artifact: str = "") -> GarbageSeries:
    """Make a series of what was written, or will be."""
    points = tuple(GarbagePoint(*point) for point in record.points)
    return take_fields(GarbageSeries, record, rank=rank, points=points, artifact=artifact)


def parse_host(data: bytes, *, artifact: str) -> tuple[HostState, ...]:
    """Read ``host.json`` of a node: its states, the older one first."""
    record = decode_record(data, HostRecord)
    moments = (("start", record.start), ("end", record.end))
    return tuple(
        take_fields(HostState, entry, node=record.node, moment=moment, artifact=artifact)
        for moment, entry in moments
        if entry is not None
    )


def parse_claims(data: bytes, *, artifact: str) -> tuple[RankClaim, ...]:
    """Read ``ranks.json`` of a node."""
    record = decode_record(data, ClaimsRecord)
    return tuple(
        take_fields(
            RankClaim,
            entry,
            environment=dict(sorted(entry.environment.items())),
            node=record.node,
            artifact=artifact,
            row=row,
        )
        for row, entry in enumerate(record.claims)
    )


def parse_devices(data: bytes, *, artifact: str) -> tuple[DeviceState, ...]:
    """Read ``devices.json`` of a node: a row for each device."""
    record = decode_record(data, DevicesRecord)
    return tuple(
        DeviceState(record.node, entry, artifact, row) for row, entry in enumerate(record.devices)
    )


def parse_checks(data: bytes, *, artifact: str) -> tuple[CheckResult, ...]:
    """Read ``checks.json`` of a node: a row for each check.

    Raises:
        ParseError: It is not that JSON, or holds more than any node has.
    """
    record = decode_record(data, ChecksRecord)
    problems = sum(len(result.problems) for result in record.results)
    if len(record.results) > _MAX_CHECKS or problems > _MAX_PROBLEMS:
        raise ParseError(f"{len(record.results)} checks with {problems} problems are too many")
    node = _cut(record.node)
    return tuple(_clean_check(result, node, artifact) for result in record.results)


def _clean_check(result: CheckResult, node: str, artifact: str) -> CheckResult:
    """Return a check of this node whose texts have an end."""
    return replace(
        result,
        name=_cut(result.name),
        node=node,
        subject=_cut(result.subject),
        reason=_cut(result.reason),
        facts={_cut(name): _cut(text) for name, text in result.facts.items()},
        figures={_cut(name): value for name, value in result.figures.items()},
        problems=tuple(map(_clean_problem, result.problems)),
        artifact=artifact,
    )


def _clean_problem(problem: CheckProblem) -> CheckProblem:
    nodes = problem.nodes
    return replace(
        problem,
        text=_cut(problem.text),
        subject=_cut(problem.subject),
        because=tuple(map(_cut, problem.because)),
        remedies=tuple(map(_cut, problem.remedies)),
        nodes=None if nodes is None else tuple(map(_cut, nodes)),
    )


def _cut(text: str) -> str:
    return text[:_MAX_CHECK_TEXT]
