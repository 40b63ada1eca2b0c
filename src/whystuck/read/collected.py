"""What was read so far, and the readers of our own records, which add to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from whystuck.evidence import records
from whystuck.evidence.finding import Gap
from whystuck.evidence.live import (
    Beat,
    Departure,
    ExitRecord,
    FailedManager,
    FatalStack,
    PeerCount,
    PeerWait,
    ProcessSample,
    PythonException,
    StackSample,
)
from whystuck.evidence.logs.lines import Logs
from whystuck.evidence.model import Evidence
from whystuck.evidence.nodes.checks import CHECKS_FILE, CheckResult
from whystuck.evidence.nodes.devices import DEVICES_FILE, DeviceState, RunningKernel
from whystuck.evidence.nodes.ras import RAS_JSON_FILE, RAS_TEXT_FILE, RasStatus
from whystuck.evidence.nodes.records import (
    CLAIMS_FILE,
    CPU_FILE,
    GARBAGE_FILE,
    HOST_FILE,
    MEMORY_FILE,
)
from whystuck.evidence.nodes.resources import (
    CpuSeries,
    GarbageSeries,
    HostState,
    MemorySeries,
    RankClaim,
)
from whystuck.evidence.ops.executed_lines import ExecutedLines
from whystuck.evidence.ops.inspection import Inspection
from whystuck.evidence.ops.log import Ops
from whystuck.evidence.ops.marks import Marks
from whystuck.evidence.ops.nccl_inspector import NcclLog
from whystuck.evidence.traces.tables import TraceSummary
from whystuck.evidence.trigger import TRIGGER_FILE
from whystuck.parse import node_records
from whystuck.parse import records as parse_records
from whystuck.parse.boot_check import parse_boot_check
from whystuck.parse.dumps.merge import DumpTable
from whystuck.parse.errors import ParseError
from whystuck.parse.logs.signatures import Signature
from whystuck.parse.ops.inspection import parse_inspection
from whystuck.parse.ops.nccl_inspector import parse_nccl_inspector
from whystuck.parse.ras import parse_ras
from whystuck.parse.stacks.executed_lines import parse_executed
from whystuck.parse.stacks.gpu_kernels import parse_gpu_kernels
from whystuck.parse.stacks.profiler_stacks import parse_profiler_stacks
from whystuck.read import log_files, op_log_files
from whystuck.read.budget import Budget
from whystuck.read.sniffing import Kind
from whystuck.read.walking import Origin

# A rank of a job of 100,000 has some 300,000 of them, most of them in common with all others.
_MAX_MEMBERS = 4_000_000
# Executed lines of all threads of all ranks: 1,024 ranks have so many with the last 200 lines of
# ten threads each.
_MAX_EXECUTED = 2_000_000
# Of logs of 1 KB, half a million; a job of 20,000 ranks has 30 MB of the short ones.
_MAX_LOG_BYTES = 1 << 26
# Some 500 bytes of memory each while they are compared.
_MAX_NCCL_OPS = 2_000_000
# Of 1,024 nodes, some 40,000.
_MAX_CHECKS = 200_000


@dataclass(frozen=True)
class Choice:
    """What is read, and how.

    Attributes:
        prefix: When given, only files with this text and a number in their name are read, and the
            number is the rank.
        only_logs: Whether all that is no log is passed over.
        signatures: What is looked for in logs; our own table when empty.
        targets: What is read for a path that the user named, where that is a link.
        home: The evidence folder that an incident belongs to which is gathered elsewhere.
        only_used: Whether groups, forms and sites of op logs without an op that is read are passed
            over, for who looks again and again and judges the ops alone.
    """

    prefix: str = ""
    only_logs: bool = False
    signatures: tuple[Signature, ...] = ()
    targets: Mapping[Path, Path] = field(default_factory=dict)
    home: Path | None = None
    only_used: bool = False


@dataclass
class Collected:
    """What was read so far."""

    choice: Choice = field(default_factory=Choice)
    budget: Budget = field(default_factory=Budget)
    tables: list[DumpTable] = field(default_factory=list)
    stacks: list[StackSample] = field(default_factory=list)
    processes: list[ProcessSample] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)
    peer_waits: list[PeerWait] = field(default_factory=list)
    peer_counts: list[PeerCount] = field(default_factory=list)
    failed_managers: list[FailedManager] = field(default_factory=list)
    exceptions: list[PythonException] = field(default_factory=list)
    departures: list[Departure] = field(default_factory=list)
    thread_errors: list[PythonException] = field(default_factory=list)
    exits: list[ExitRecord] = field(default_factory=list)
    fatals: list[FatalStack] = field(default_factory=list)
    inspections: list[Inspection] = field(default_factory=list)
    executed: list[ExecutedLines] = field(default_factory=list)
    memory: list[MemorySeries] = field(default_factory=list)
    cpu: list[CpuSeries] = field(default_factory=list)
    garbage: list[GarbageSeries] = field(default_factory=list)
    hosts: list[HostState] = field(default_factory=list)
    claims: list[RankClaim] = field(default_factory=list)
    ras: list[RasStatus] = field(default_factory=list)
    devices: list[DeviceState] = field(default_factory=list)
    kernels: list[RunningKernel] = field(default_factory=list)
    nccl_logs: list[NcclLog] = field(default_factory=list)
    checks: list[CheckResult] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    source_size: int = 0
    gaps: list[Gap] = field(default_factory=list)
    node_by_rank: dict[int, str] = field(default_factory=dict)
    pending_dumps: list[tuple[Path, Origin]] = field(default_factory=list)
    pending_ops: list[op_log_files.OpLogFile] = field(default_factory=list)
    pending_marks: list[op_log_files.OpLogFile] = field(default_factory=list)
    pending_logs: list[log_files.LogPath] = field(default_factory=list)
    pending_traces: list[tuple[Path, Origin]] = field(default_factory=list)
    traces: TraceSummary = field(default_factory=TraceSummary)
    logs: Logs = field(default_factory=Logs)
    world_of_logs: int = 0
    ops: Ops = field(default_factory=Ops)
    marks: Marks = field(default_factory=Marks)
    files: int = 0
    groups: dict[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]] = field(
        default_factory=dict
    )
    members_held: int = 0
    executed_held: int = 0
    log_bytes_held: int = 0
    nccl_ops_held: int = 0
    checks_held: int = 0

    def list_rows(self) -> dict[str, Any]:
        """Return the rows of each table that has the name of one here and in the evidence."""
        names = {one.name for one in fields(self)} & {one.name for one in fields(Evidence)}
        held = {name: getattr(self, name) for name in names - {"gaps"}}
        return {name: tuple(rows) for name, rows in held.items() if isinstance(rows, list)}

    def keep_log(self, head: bytes, size: int) -> bytes | None:
        """Return a log that its head is all of, to be read from memory; None for any other."""
        if len(head) != size or self.log_bytes_held + size > _MAX_LOG_BYTES:
            return None
        self.log_bytes_held += size
        return head


def _take_processes(data: bytes, origin: Origin, found: Collected) -> None:
    found.processes += parse_records.parse_processes(
        data, rank=_rank(origin), worker=origin.worker is not None, artifact=origin.artifact
    )


def _take_beat(data: bytes, origin: Origin, found: Collected) -> None:
    beat = parse_records.parse_beat(data, rank=_rank(origin), artifact=origin.artifact)
    groups = []
    for group in beat.groups:
        # Every rank names all members of its groups: those of a large job are held once.
        if group not in found.groups:
            found.members_held += len(group[1])
            if found.members_held > _MAX_MEMBERS:
                raise ParseError(f"the groups of all ranks have more than {_MAX_MEMBERS} members")
        groups.append(found.groups.setdefault(group, group))
    found.beats.append(replace(beat, groups=tuple(groups)))


def _take_peers(data: bytes, origin: Origin, found: Collected) -> None:
    waits, counts = parse_records.parse_peers(data, rank=_rank(origin), artifact=origin.artifact)
    found.peer_waits += waits
    found.peer_counts += counts


def _take_skipped(data: bytes, origin: Origin, found: Collected) -> None:
    rank, artifact = _rank(origin), origin.artifact
    found.failed_managers += parse_records.parse_skipped(data, rank=rank, artifact=artifact)


def _take_exception(data: bytes, origin: Origin, found: Collected) -> None:
    found.exceptions.append(
        parse_records.parse_exception(data, rank=_rank(origin), artifact=origin.artifact)
    )


def _take_thread_errors(data: bytes, origin: Origin, found: Collected) -> None:
    rank, artifact = _rank(origin), origin.artifact
    found.thread_errors += parse_records.parse_thread_errors(data, rank=rank, artifact=artifact)


def _take_leaving(data: bytes, origin: Origin, found: Collected) -> None:
    rank, artifact = _rank(origin), origin.artifact
    found.departures.append(parse_records.parse_leaving(data, rank=rank, artifact=artifact))


def _take_exit(data: bytes, origin: Origin, found: Collected) -> None:
    found.exits.append(parse_records.parse_exit(data, rank=_rank(origin), artifact=origin.artifact))


def _take_inspection(data: bytes, origin: Origin, found: Collected) -> None:
    inspection, gaps = parse_inspection(data, rank=_rank(origin), artifact=origin.artifact)
    found.inspections.append(inspection)
    found.gaps += gaps


def _take_memory(data: bytes, origin: Origin, found: Collected) -> None:
    rank, artifact = _rank(origin), origin.artifact
    found.memory.append(node_records.parse_memory(data, rank=rank, artifact=artifact))


def _take_cpu(data: bytes, origin: Origin, found: Collected) -> None:
    found.cpu.append(node_records.parse_cpu(data, rank=_rank(origin), artifact=origin.artifact))


def _take_garbage(data: bytes, origin: Origin, found: Collected) -> None:
    rank, artifact = _rank(origin), origin.artifact
    found.garbage.append(node_records.parse_garbage(data, rank=rank, artifact=artifact))


def _take_host(data: bytes, origin: Origin, found: Collected) -> None:
    found.hosts += node_records.parse_host(data, artifact=origin.artifact)


def _take_checks(data: bytes, origin: Origin, found: Collected) -> None:
    if found.checks_held >= _MAX_CHECKS:
        raise ParseError(f"other files have {_MAX_CHECKS} checks, and no more are read")
    checks = node_records.parse_checks(data, artifact=origin.artifact)
    found.checks_held += len(checks)
    found.checks += checks


def _take_boot_check(data: bytes, origin: Origin, found: Collected) -> None:
    found.checks += parse_boot_check(data, artifact=origin.artifact)


def _take_claims(data: bytes, origin: Origin, found: Collected) -> None:
    found.claims += node_records.parse_claims(data, artifact=origin.artifact)


def _take_ras(data: bytes, origin: Origin, found: Collected) -> None:
    found.ras.append(parse_ras(data, artifact=origin.artifact))


def _take_nccl_log(data: bytes, origin: Origin, found: Collected) -> None:
    if found.nccl_ops_held >= _MAX_NCCL_OPS:
        raise ParseError(f"other files have {_MAX_NCCL_OPS} ops, and no more are read")
    log = parse_nccl_inspector(data, artifact=origin.artifact)
    found.nccl_ops_held += len(log)
    found.nccl_logs.append(log)
    for count, what in ((log.broken, "lines cannot be read"), (log.dropped, "ops are missing")):
        if count:
            reason = f"{origin.artifact}: {count} {what}"
            found.gaps.append(Gap(origin.rank, "log of NCCL's inspector", reason))


def _take_devices(data: bytes, origin: Origin, found: Collected) -> None:
    found.devices += node_records.parse_devices(data, artifact=origin.artifact)


def _take_kernels(data: bytes, origin: Origin, found: Collected) -> None:
    text = data.decode("utf-8", errors="replace")
    found.kernels += parse_gpu_kernels(text, rank=_rank(origin), artifact=origin.artifact)


def _take_profiler_stacks(data: bytes, origin: Origin, found: Collected) -> None:
    rank, artifact = _rank(origin), origin.artifact
    found.stacks.append(parse_profiler_stacks(data, rank=rank, artifact=artifact))


def _take_executed(data: bytes, origin: Origin, found: Collected) -> None:
    if found.executed_held >= _MAX_EXECUTED:
        raise ParseError(f"other files have {_MAX_EXECUTED} executed lines, and no more are read")
    executed = parse_executed(data, rank=_rank(origin), artifact=origin.artifact)
    found.executed_held += sum(len(thread.lines) for thread in executed.threads)
    found.executed.append(executed)


def _take_gaps(data: bytes, _origin: Origin, found: Collected) -> None:
    found.gaps += parse_records.parse_gaps(data)


def _rank(origin: Origin) -> int:
    if origin.rank is None:
        raise ParseError("which rank it belongs to cannot be told")
    return origin.rank


FOREIGN_READERS: dict[Kind, Callable[[bytes, Origin, Collected], None]] = {
    Kind.RAS: _take_ras,
    Kind.NCCL_LOG: _take_nccl_log,
    Kind.BOOT_CHECK: _take_boot_check,
}
OWN_READERS: dict[str, Callable[[bytes, Origin, Collected], None]] = {
    records.PROC_FILE: _take_processes,
    records.BEAT_FILE: _take_beat,
    records.PEERS_FILE: _take_peers,
    records.SKIPPED_FILE: _take_skipped,
    records.EXCEPTION_FILE: _take_exception,
    records.THREAD_ERRORS_FILE: _take_thread_errors,
    records.LEAVING_FILE: _take_leaving,
    records.EXIT_FILE: _take_exit,
    records.INSPECT_FILE: _take_inspection,
    records.EXECUTED_FILE: _take_executed,
    records.PROFILER_STACKS_FILE: _take_profiler_stacks,
    records.GAPS_FILE: _take_gaps,
    records.GPU_KERNELS_FILE: _take_kernels,
    MEMORY_FILE: _take_memory,
    CPU_FILE: _take_cpu,
    GARBAGE_FILE: _take_garbage,
    HOST_FILE: _take_host,
    CLAIMS_FILE: _take_claims,
    DEVICES_FILE: _take_devices,
    CHECKS_FILE: _take_checks,
    **dict.fromkeys((RAS_JSON_FILE, RAS_TEXT_FILE), _take_ras),
    # Read elsewhere, or of use to people only.
    **dict.fromkeys((records.INCIDENT_FILE, records.JOB_FILE, TRIGGER_FILE), lambda *_: None),
}
