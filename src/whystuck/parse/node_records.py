"""The JSON artifacts of nodes and of memory, as the tables that rules read."""

from __future__ import annotations

from whystuck.evidence.nodes.devices import DevicesRecord, DeviceState
from whystuck.evidence.nodes.records import ClaimsRecord, CpuRecord, HostRecord, MemoryRecord
from whystuck.evidence.nodes.resources import (
    CpuPoint,
    CpuSeries,
    HostState,
    MemoryPoint,
    MemorySeries,
    RankClaim,
)
from whystuck.parse.records import decode_record, take_fields


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
    record = decode_record(data, CpuRecord)
    points = tuple(CpuPoint(*point) for point in record.points)
    return take_fields(CpuSeries, record, rank=rank, points=points, artifact=artifact)


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
