"""What a log tells of its job beside its errors: ranks, hosts, processes, devices, attempts.

Only lines that tell such a thing, and a sample of the others, are looked at: the rest of a log that
is well is never taken apart.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass, field

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.lines.line_texts import ToldText, read_text
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.lines.times import Stamp, read_stamp
from whystuck.parse.logs.owners.headed_looks import HeadedLooks
from whystuck.parse.logs.owners.process_words import ENVIRON, EnvironLoop, is_row_of_ps
from whystuck.parse.logs.owners.said_places import PodRanks, SaidPlaces, join_sets
from whystuck.parse.logs.steady_steps import Pace

FACT_MARKS = (
    b" busId ",
    b"will restart worker group",
    b"restart_count=",
    b"setting system clock to",
    b"RANK=",
    b" world_rank=",
    b"xception in rank",
    b"xception on rank",
    b"rror in rank",
    b"rror on rank",
    b"rror in worker rank",
    b"rror on worker rank",
    b"ailure in rank",
    b"ailure on rank",
    b", RankID:",
    b" spawned with command",
    b"/environ",
)
# So many lines behind the command that prints the environment of a process.
_ENVIRON_LINES = 12
# Of the sampled lines, the share that makes a log one of a kind.
_SHARE = 0.5
_MAX_KEPT = 20_000
_MAX_RESTARTS = 1000
# The last calls of each communicator of a process; one more would be of a step before.
_MAX_CALLS = 64
# With NCCL_DEBUG_SUBSYS=COLL.
_CALL = re.compile(
    r"NCCL INFO (?P<op>[A-Z]\w{1,30}): opCount (?P<seq>[0-9a-f]{1,15}) .{1,120}? "
    r"count (?P<nin>\d{1,18}) datatype (?P<dtype>\d{1,3}) .{0,80}?"
    r"comm (?P<comm>0x[0-9a-f]{1,16}) \[nranks=(?P<size>\d{1,7})\]"
)

_COMM = re.compile(
    r"\brank (\d{1,7}) n[rR]anks (\d{1,7}) cudaDev (\d{1,4}).{0,80}? busId ([0-9a-fA-F:.]{1,20})"
)
_WORKER = re.compile(r"\bip=([\d.a-fA-F:]{2,45}), pid=(\d{1,7})\) world_rank=(\d{1,7}), ")
# What a worker says of itself behind the prefix that Ray gives it.
_OWN_WORKER = re.compile(
    r"^(?:\[[\d:., -]{5,30}\] ?)?(?:(?:DEBUG|INFO|WARNING|ERROR)\b:? ?)?"
    r"(?:world_rank[=:] ?|(?:Exception|Error|Failure) (?:in|on) (?:worker )?rank ?)(\d{1,7})\b"
)
# DeepSpeed's launcher, of each process that it starts.
_SPAWNED = re.compile(r"\bprocess (\d{1,9}) spawned with command: .{0,400}--local_rank=(\d{1,4})\b")
_RESTART = re.compile(r"(\d{1,6})/(\d{1,6}) attempts left; will restart worker group")
_COUNT = re.compile(r"\brestart_count=(\d{1,6})\b")
_BOOTED = re.compile(r"setting system clock to (\S+)")
_ENV_RANK = re.compile(r"(?:^|[\s'\"{,])RANK['\"]?[=:] ?['\"]?(\d{1,7})\b")
_SAID_RANK = re.compile(r"^(?:I am |this is )?rank (\d{1,7}) (?:of|/) ?(\d{1,7})\b", re.IGNORECASE)


@dataclass(slots=True)
class Comm:
    """A process as NCCL names it when a communicator is made."""

    rank: int
    size: int
    local: int
    bus: str


@dataclass(slots=True)
class CallSeen:
    """A call of a collective, as NCCL prints it."""

    row: int
    line: LogLine
    groups: dict[str, str]


@dataclass(slots=True)
class LogFacts:
    """What one log tells beside its errors.

    Attributes:
        kinds: How many of the sampled lines look like those of each kind of log.
        ranks: How often a prefix names each rank.
        tasks: How often srun or a like launcher names each task.
        rank_by_task: The rank inside, of a task.
        has_agents: Whether torch's launcher wrote lines of tasks: each of these has many ranks.
        rank_by_local: The rank inside, of a host and local rank.
        rank_by_place: The rank inside, of a local rank of a host that is named with it.
        node_by_rank: Hosts of ranks.
        nodes: How often each host is named.
        comms: Processes of NCCL, by host and number.
        workers: Ranks of processes, by host and number, as Ray Train and torch_npu tell.
        pids: Numbers of processes that lines say they are of.
        local_by_pid: Local ranks of processes, as launchers tell them.
        rank_by_pid: Ranks of processes, as sentences tell them.
        rank_by_device: The ranks whose lines name a device of a host.
        said_ranks: The ranks that the log says it is of.
        world_size: The number of ranks that it tells.
        first: The first time in it, and ``last`` the last one.
        dated: The last one with a year.
        progress: The last line that shows progress, of each rank.
        progress_times: The last time of such a line, of each rank.
        pace: The times of the last of these lines, and when somebody looked.
        losses: The last line with a loss that is finite, of each rank.
        restarts: The lines where the launcher starts all ranks again, with the attempt from there.
        boot: When the machine was booted.
        environ: The process whose environment is printed, and the line that says so.
        loop: The processes whose ranks are printed one after the other.
        pods: The pod that is described.
        said: What sentences say of where ranks run, and of their groups.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    ranks: Counter[int] = field(default_factory=Counter)
    tasks: Counter[int] = field(default_factory=Counter)
    rank_by_task: dict[int, set[int]] = field(default_factory=dict)
    has_agents: bool = False
    rank_by_local: dict[int, set[int]] = field(default_factory=dict)
    rank_by_place: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    node_by_rank: dict[int, str] = field(default_factory=dict)
    nodes: Counter[str] = field(default_factory=Counter)
    comms: dict[tuple[str, int], Comm] = field(default_factory=dict)
    workers: dict[tuple[str, int], int] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)
    local_by_pid: dict[int, int] = field(default_factory=dict)
    rank_by_pid: dict[int, set[int]] = field(default_factory=dict)
    rank_by_device: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    said_ranks: set[int] = field(default_factory=set)
    calls: dict[tuple[str, int, str], deque[CallSeen]] = field(default_factory=dict)
    world_size: int = 0
    first: Stamp | None = None
    last: Stamp | None = None
    dated: Stamp | None = None
    progress: dict[int, int] = field(default_factory=dict)
    progress_times: dict[int, Stamp] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)
    losses: dict[int, int] = field(default_factory=dict)
    restarts: list[tuple[int, int]] = field(default_factory=list)
    boot: Stamp | None = None
    environ: tuple[int, int] = (0, 0)
    loop: EnvironLoop = field(default_factory=EnvironLoop)
    pods: PodRanks = field(default_factory=PodRanks)
    said: SaidPlaces = field(default_factory=SaidPlaces)
    looks: HeadedLooks = field(default_factory=HeadedLooks)

    def note(self, line: LogLine, row: int) -> None:
        """Take what any line tells by its prefixes, and what it says of the job."""
        self._note_who(line)
        if line.stamp is not None:
            self._note_time(line.stamp)
        text = line.text
        if line.is_nccl and (match := _COMM.search(text)):
            self._note_comm(line, match)
        # To find a word takes a tenth of the time of a pattern, and most lines have none of these.
        if "world_rank=" in text and (match := _WORKER.search(text)):
            self._note_worker((match[1], int(match[2])), min(int(match[3]), MAX_RANK))
        elif (
            line.pid and not line.is_agent and "rank" in text and (match := _OWN_WORKER.match(text))
        ):
            self._note_worker((line.node, line.pid), min(int(match[1]), MAX_RANK))
        self._note_launcher(line, row)
        if self._note_environ(text, row):
            return
        match = _ENV_RANK.search(text) if "RANK" in text else None
        if match and "#" in text[: match.start()]:
            match = None  # a comment is about what stands before it, such as a command
        if match := match or _SAID_RANK.match(text):
            if int(match[1]) <= MAX_RANK and len(self.said_ranks) < _MAX_KEPT:
                self.said_ranks.add(int(match[1]))
            if match.re is _SAID_RANK:
                self.world_size = max(self.world_size, int(match[2]))

    def _note_environ(self, text: str, row: int) -> bool:
        """Take the rank in what is printed of the environment of a process; tell whether it is."""
        if "/environ" in text and (match := ENVIRON.search(text)):
            self.environ = int(match[1]), row
        for pid, rank in self.loop.read(text, row):
            if len(self.rank_by_pid) < _MAX_KEPT:
                self.rank_by_pid.setdefault(pid, set()).add(rank)
        if self.loop.last_row == row:
            return True
        pid, begin = self.environ
        is_own = bool(pid) and 0 <= row - begin <= _ENVIRON_LINES and "RANK=" in text
        if is_own and (match := _ENV_RANK.search(text)) and len(self.rank_by_pid) < _MAX_KEPT:
            self.rank_by_pid.setdefault(pid, set()).add(int(match[1]))
            self.environ = 0, 0
        # A row of ps has the environment of one of many processes.
        return is_own or (" RANK=" in text and is_row_of_ps(text))

    def _note_launcher(self, line: LogLine, row: int) -> None:
        """Take what a launcher tells of processes and attempts, and a kernel of its start."""
        text = line.text
        if "spawned with" in text and (match := _SPAWNED.search(text)):
            if len(self.local_by_pid) < _MAX_KEPT:
                self.local_by_pid[int(match[1])] = int(match[2])
        elif "will restart" in text and (match := _RESTART.search(text)):
            self._note_attempt(row, int(match[2]) - int(match[1]) + 1)
        elif "restart_count=" in text and (match := _COUNT.search(text)):
            self._note_attempt(row, int(match[1]))
        elif line.stamp is not None and "clock to" in text and (match := _BOOTED.search(text)):
            self._note_boot(line.stamp, match[1])

    def count_like(self, line: LogLine) -> None:
        """Count a line of progress that tells no more than one which was taken."""
        self._note_who(line)
        self.kinds[""] += 1

    def sample(self, line: LogLine, row: int) -> ToldText:
        """Take a line as one of many like it; return what its text tells."""
        self.note(line, row)
        told = read_text(line.text, line.is_kernel, line.is_agent)
        self.kinds[told.kind] += 1
        self.world_size = max(self.world_size, told.world_size)
        if told.pid is not None and len(self.pids) < _MAX_KEPT:
            self.pids.add(told.pid)
        self._note_said(told, line, row)
        if line.is_nccl and "opCount" in line.text and (match := _CALL.search(line.text)):
            call = CallSeen(row, line, match.groupdict())
            self._note_call((line.node, line.pid, match["comm"]), call)
        if told.is_progress and len(self.progress) < _MAX_KEPT:
            self.progress |= {line.writer: row, line.seat: row}
            self.pace.count_step(row, line.text)
            if told.is_finite:
                self.losses[line.writer] = row
            if line.stamp is not None:
                self.progress_times[line.writer] = line.stamp
                self.pace.note_step(row, line.stamp)
        elif not told.is_progress:
            self.pace.note_line(row, line.text)
        return told

    def _note_said(self, told: ToldText, line: LogLine, row: int) -> None:
        """Take what a line says of where ranks run."""
        for rank, pid, is_local in told.rank_pids:
            if len(self.rank_by_pid) >= _MAX_KEPT:
                break
            if is_local:
                self.local_by_pid.setdefault(pid, rank)
            else:
                self.rank_by_pid.setdefault(pid, set()).add(rank)
        if look := self.looks.read(line.text, row):
            self._note_look(*look)
        self.said.note(told.said, line.rank)
        self.said.note_groups(told.groups)
        if (pod := self.pods.read(line.text, row)) and len(self.node_by_rank) < _MAX_KEPT:
            self.node_by_rank.setdefault(pod[1], pod[0])

    def _note_look(self, pid: int, rank: int, is_so: bool) -> None:  # noqa: FBT001
        """Take whose process was looked at below a heading, or take it back."""
        if is_so and len(self.rank_by_pid) < _MAX_KEPT:
            self.rank_by_pid.setdefault(pid, set()).add(rank)
        elif not is_so and self.rank_by_pid.get(pid) == {rank}:
            del self.rank_by_pid[pid]

    def find_kind(self) -> str:
        """Tell the kind of the log from the lines that were sampled; empty for output of ranks."""
        written = sum(count for kind, count in self.kinds.items() if kind != "blank")
        best = max(
            (kind for kind in self.kinds if kind not in ("", "blank")),
            key=lambda kind: self.kinds[kind],
            default="",
        )
        # People put lines of ranks below those of the kernel.
        is_pasted = best == "kernel" and bool(self.ranks)
        if best and not is_pasted and self.kinds[best] >= _SHARE * written:
            return best
        # Few words make a description of a pod; the values are indented below them.
        return "scheduler" if self.kinds["scheduler"] > 1 and not self.ranks else ""

    def count_restarts(self, row: int) -> int:
        """Return how often the launcher had started all ranks again before a line."""
        return sum(begin < row for begin, _ in self.restarts)

    def shift(self, rows: int) -> None:
        """Count lines from another start, ``rows`` before."""
        self.progress = {rank: row + rows for rank, row in self.progress.items()}
        self.losses = {rank: row + rows for rank, row in self.losses.items()}
        self.pace.shift(rows)
        for call in (one for calls in self.calls.values() for one in calls):
            call.row += rows
        self.restarts = [(row + rows, attempt) for row, attempt in self.restarts]

    def add(self, later: LogFacts) -> None:
        """Take what the next part of the log tells."""
        self.kinds += later.kinds
        self.ranks += later.ranks
        self.tasks += later.tasks
        self.nodes += later.nodes
        join_sets(self.rank_by_task, later.rank_by_task)
        self.has_agents |= later.has_agents
        join_sets(self.rank_by_local, later.rank_by_local)
        join_sets(self.rank_by_pid, later.rank_by_pid)
        join_sets(self.rank_by_place, later.rank_by_place)
        join_sets(self.rank_by_device, later.rank_by_device)
        for worker, rank in later.workers.items():
            self._note_worker(worker, rank)
        self.local_by_pid |= later.local_by_pid
        self.node_by_rank = {**later.node_by_rank, **self.node_by_rank}
        for process, comm in later.comms.items():
            known = self.comms.get(process)
            if known is None or comm.size > known.size:
                self.comms[process] = comm
        for called, calls in later.calls.items():
            self.calls.setdefault(called, deque(maxlen=_MAX_CALLS)).extend(calls)
        self.pids |= later.pids
        self.said.add(later.said)
        self.said_ranks |= later.said_ranks
        self.world_size = max(self.world_size, later.world_size)
        self.first, self.last = self.first or later.first, later.last or self.last
        self.dated, self.boot = later.dated or self.dated, self.boot or later.boot
        self.progress |= later.progress
        self.progress_times |= later.progress_times
        self.losses |= later.losses
        self.pace.add(later.pace)
        for row, attempt in later.restarts:
            self._note_attempt(row, attempt)

    def _note_who(self, line: LogLine) -> None:
        rank = line.rank
        if rank != UNKNOWN_RANK and (rank in self.ranks or len(self.ranks) < _MAX_KEPT):
            self.ranks[rank] += 1
            # What passes on the lines of others writes a number of its own before them.
            is_own = line.is_glog or line.is_nccl or "pid" in line.owner or "RankID:" in line.owner
            if line.pid and is_own and not line.is_agent:
                self._note_worker((line.node, line.pid), rank)
        if line.task != UNKNOWN_RANK and (line.task in self.tasks or len(self.tasks) < _MAX_KEPT):
            self.tasks[line.task] += 1
            self.has_agents |= line.is_agent
            if rank != UNKNOWN_RANK:
                self.rank_by_task.setdefault(line.task, set()).add(rank)
        if line.device >= 0 and rank != UNKNOWN_RANK and len(self.rank_by_device) < _MAX_KEPT:
            self.rank_by_device.setdefault((line.node, line.device), set()).add(rank)
        if line.local >= 0 and rank != UNKNOWN_RANK:
            if line.node:
                self.rank_by_place.setdefault((line.node, line.local), set()).add(rank)
            else:
                self.rank_by_local.setdefault(line.local, set()).add(rank)
        if self.note_host(line.node) and rank != UNKNOWN_RANK:
            self.node_by_rank.setdefault(rank, line.node)

    def note_host(self, host: str) -> bool:
        """Count a line of a host, if one is named; return whether it is kept."""
        is_kept = bool(host) and (host in self.nodes or len(self.nodes) < _MAX_KEPT)
        if is_kept:
            self.nodes[host] += 1
        return is_kept

    def _note_worker(self, worker: tuple[str, int], rank: int) -> None:
        """Take the rank of a process; unknown where two hosts have one of that number."""
        known = self.workers.get(worker)
        if known is not None or len(self.workers) < _MAX_KEPT:
            self.workers[worker] = rank if known in (None, rank) else UNKNOWN_RANK

    def _note_time(self, stamp: Stamp) -> None:
        self.first = self.first or stamp
        self.last = stamp
        if not stamp.lack:
            self.dated = stamp

    def _note_comm(self, line: LogLine, match: re.Match[str]) -> None:
        rank, size, local = int(match[1]), int(match[2]), int(match[3])
        key = (line.node, line.pid)
        known = self.comms.get(key)
        # Ranks of small communicators are those of their group.
        if (known is None or size > known.size) and rank <= MAX_RANK:
            if known is None and len(self.comms) >= _MAX_KEPT:
                return
            self.comms[key] = Comm(rank, size, local, match[4].lower())

    def _note_call(self, key: tuple[str, int, str], call: CallSeen) -> None:
        if key in self.calls or len(self.calls) < _MAX_KEPT:
            self.calls.setdefault(key, deque(maxlen=_MAX_CALLS)).append(call)

    def _note_attempt(self, row: int, attempt: int) -> None:
        last = self.restarts[-1][1] if self.restarts else 0
        if attempt > last and len(self.restarts) < _MAX_RESTARTS:
            self.restarts.append((row, attempt))

    def _note_boot(self, stamp: Stamp, text: str) -> None:
        clock = read_stamp("iso", text)
        if clock is not None and stamp.lack == "boot":
            self.boot = Stamp(clock.ns - stamp.ns, clock.step_ns, is_zoned=True)
