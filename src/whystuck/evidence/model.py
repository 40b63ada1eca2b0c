"""One value that holds everything known about a job at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
from whystuck.evidence.nodes.checks import CheckResult
from whystuck.evidence.nodes.devices import DeviceState, RunningKernel
from whystuck.evidence.nodes.ras import RasStatus
from whystuck.evidence.nodes.resources import (
    CpuSeries,
    GarbageSeries,
    HostState,
    MemorySeries,
    RankClaim,
)
from whystuck.evidence.ops.collectives import Collectives
from whystuck.evidence.ops.executed_lines import ExecutedLines
from whystuck.evidence.ops.inspection import Inspection
from whystuck.evidence.ops.log import Ops
from whystuck.evidence.ops.marks import Marks
from whystuck.evidence.ops.nccl_inspector import NcclLog
from whystuck.evidence.sections import JobInfo
from whystuck.evidence.traces.tables import TraceSummary

_SIGINT = 2


@dataclass(frozen=True)
class Topology:
    """Who takes part: the ranks, the node of each, and the members of each process group.

    ``world_size`` is 0 when unknown. ``members_by_group`` is keyed by group name.
    """

    world_size: int = 0
    node_by_rank: Mapping[int, str] = field(default_factory=dict)
    members_by_group: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def ranks(self) -> frozenset[int]:
        """All ranks of the job, seen or not."""
        return frozenset(range(self.world_size)) | frozenset(self.node_by_rank)


@dataclass(frozen=True)
class Incident:
    """Why the evidence was taken, and what the watcher knew then.

    ``kind`` is ``stall``, ``exit``, ``slow``, ``snapshot``, ``inspection``, ``check`` or
    ``files``; of a slow job that runs, only its pace is judged. ``stalled_s`` is the time since the
    last progress event, ``limit_s`` the limit it broke and ``longest_gap_s`` the longest legal gap
    seen before. ``closed_after_s`` is set when the job moved again.
    ``outside_signal`` is the signal that somebody sent to the whole job, 0 when nobody did, and
    ``outside_ns`` when it came. ``sender_pid`` and ``sender`` are the process that sent it and its
    command line, 0 and empty when unknown; ``is_typed`` says that it was typed at the terminal.
    No rank had made progress for ``idle_s`` when it came, and ``is_moving`` is whether that is no
    longer than usual; both are None when unknown. ``killed_ns`` is when whystuck itself ended the
    job, 0 when it did not. ``cwd`` is where the job ran. ``round`` is the round it belongs to, -1
    when unknown, and ``attempt`` the launcher's own attempt in it. ``is_past`` says that the
    launcher started its ranks again after it, and that the job ended well.
    """

    kind: str = "files"
    opened_ns: int = 0
    stalled_s: float = 0.0
    limit_s: float = 0.0
    longest_gap_s: float = 0.0
    closed_after_s: float | None = None
    command_exit: int | None = None
    outside_signal: int = 0
    outside_ns: int = 0
    sender_pid: int = 0
    sender: str = ""
    is_typed: bool = False
    idle_s: float | None = None
    is_moving: bool | None = None
    killed_ns: int = 0
    cwd: str = ""
    round: int = -1
    attempt: int = 0
    is_past: bool = False

    @property
    def is_interrupt(self) -> bool:
        """Whether the user interrupted the job, as with Ctrl-C."""
        return self.outside_signal == _SIGINT

    @property
    def is_idle_end(self) -> bool:
        """Whether the user interrupted a job of which no rank had made progress for a while."""
        return self.is_interrupt and self.is_moving is False


@dataclass(frozen=True)
class Evidence:
    """All tables. Everything is optional: a rule that lacks its table is not run.

    ``collectives`` holds the ops of flight recorders, and those of op logs where they tell more;
    ``ops`` is all that op logs tell, and ``recorded_ops`` the number of ops in dumps of flight
    recorders, of which none need be left in ``collectives``. ``claims`` are all processes that said
    they are ranks: of those of one rank, only one is in the other tables. ``is_partly_read`` tells
    that files were not read, as there are too many or it would have taken too long.
    """

    topology: Topology = Topology()
    incident: Incident = Incident()
    job: JobInfo | None = None
    collectives: Collectives = field(default_factory=Collectives)
    ops: Ops = field(default_factory=Ops)
    marks: Marks = field(default_factory=Marks)
    stacks: tuple[StackSample, ...] = ()
    processes: tuple[ProcessSample, ...] = ()
    beats: tuple[Beat, ...] = ()
    peer_waits: tuple[PeerWait, ...] = ()
    peer_counts: tuple[PeerCount, ...] = ()
    failed_managers: tuple[FailedManager, ...] = ()
    exceptions: tuple[PythonException, ...] = ()
    departures: tuple[Departure, ...] = ()
    thread_errors: tuple[PythonException, ...] = ()
    exits: tuple[ExitRecord, ...] = ()
    fatals: tuple[FatalStack, ...] = ()
    inspections: tuple[Inspection, ...] = ()
    executed: tuple[ExecutedLines, ...] = ()
    logs: Logs = field(default_factory=Logs)
    memory: tuple[MemorySeries, ...] = ()
    cpu: tuple[CpuSeries, ...] = ()
    garbage: tuple[GarbageSeries, ...] = ()
    hosts: tuple[HostState, ...] = ()
    claims: tuple[RankClaim, ...] = ()
    ras: tuple[RasStatus, ...] = ()
    devices: tuple[DeviceState, ...] = ()
    kernels: tuple[RunningKernel, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    nccl_logs: tuple[NcclLog, ...] = ()
    traces: TraceSummary = field(default_factory=TraceSummary)
    sources: Mapping[str, str] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    recorded_ops: int = 0
    is_partly_read: bool = False
