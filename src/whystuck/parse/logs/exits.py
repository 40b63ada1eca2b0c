"""How processes ended, as launchers and schedulers write it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.lines.times import Stamp, read_stamp
from whystuck.parse.logs.task_lists import MAX_TASKS, expand_tasks

# Texts of which every line that begins or tells an end has one.
EXIT_MARKS = (
    b"failed (exitcode: ",
    b"Failures:",
    b"Root Cause (first observed",
    b"exits with return code",
    b"Killing subprocess",
    b"closing signal SIG",
    b"srun: error: ",
    # What `srun --wait` prints of each state.
    b": exited",
    b"Terminating StepId",
    b"Terminating job step",
    b"CANCELLED AT ",
    b" noticed that process rank",
    b"Process name: [",
    b"KILLED BY SIGNAL: ",
    b"=   RANK ",
    b"Child process ",
    b"terminated with exit code",
    b"terminated with signal",
    b"died with <Signals.",
    b"returned non-zero exit status",
    b": line ",
    b"Name:    ",
    b"(local_rank: ",
    b" exited with code ",
    b" died from signal ",
)
# Lines of others in a row after which a table is taken as cut off.
_MAX_STRANGERS = 400
_FATAL_CODE = 128

_SIGNALS = {
    "hangup": 1,
    "interrupt": 2,
    "quit": 3,
    "illegal instruction": 4,
    "aborted": 6,
    "bus error": 7,
    "floating point exception": 8,
    "killed": 9,
    "out of memory": 9,
    "segmentation fault": 11,
    "terminated": 15,
}
_NAMES = {
    "SIGHUP": 1,
    "SIGINT": 2,
    "SIGQUIT": 3,
    "SIGILL": 4,
    "SIGABRT": 6,
    "SIGBUS": 7,
    "SIGFPE": 8,
    "SIGKILL": 9,
    "SIGSEGV": 11,
    "SIGTERM": 15,
}
_ELASTIC = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_CLOSING = re.compile(r"Sending process (\d+) closing signal (SIG\w+)")
_DEEPSPEED = re.compile(r"exits with return code = (-?\d+)")
_DEEPSPEED_RANK = re.compile(r"--local_rank=(\d+)")
_KILLING = re.compile(r"Killing subprocess (\d+)")
_SRUN = re.compile(r"srun: error: (\S+): tasks? ([\d,-]+): (.*?\S)(?: \(core dumped\))?\s*$")
# Of tasks that ended well; those that did not are "exited abnormally".
_SRUN_DONE = re.compile(
    r"\bsrun: (?:(?:StepId|step)[= ]\S{1,40} )?tasks? ([\d,-]{1,4000}): exited\s*$"
)
_SRUN_CODE = re.compile(r"Exited with exit code (\d+)")
_STEP_END = re.compile(
    r"srun: (?:launch/slurm: _step_signal: )?Terminating (?:StepId|job step)"
    r"|slurmstepd: error: \*\*\* (?:STEP|JOB)"
)
_MPIRUN = re.compile(
    r"noticed that process rank (\d+) with PID (\d+) on node (\S+) exited on signal (\d+)"
)
_PROCESS = re.compile(r"^\s*Process name: \[(?:\[\d+,\d+\],|prterun-[^@\]]*@\d+,)(\d+)\]")
_PROCESS_CODE = re.compile(r"^\s*Exit code:\s+(\d+)")
_BAD_END = re.compile(r"^=   RANK (\d+) PID (\d+) RUNNING AT (\S+)")
_BAD_SIGNAL = re.compile(r"^=   KILLED BY SIGNAL: (\d+) ")
_CHILD = re.compile(
    r"Child process (?:with PID )?(\d+) (?:terminated with code|exited with(?: exit)? code) (-?\d+)"
)
# Docker Compose, of a container.
_CONTAINER = re.compile(
    r"^(?:container )?([a-z0-9][\w.-]{0,80}-\d{1,4}) exited with code (\d{1,3})\s*$"
)
# PALS, which starts MPI jobs on machines of HPE.
_PALS = re.compile(
    r"^([\w.-]{1,80}): rank (\d{1,7}) (?:exited with code (\d{1,5})|died from signal (\d{1,3}))"
)
_SPAWNED = re.compile(r"process (\d+) terminated with (?:exit code (\d+)|signal (SIG\w+))")
_COMMAND = re.compile(
    r"CalledProcessError: .*(?:died with <Signals\.(SIG\w+)|returned non-zero exit status (\d+))"
)
_LOCAL_RANK = re.compile(r"--local[-_]rank[ =](\d{1,4})\b")
_SHELL = re.compile(
    r": line \d+: +(\d+) (Killed|Terminated|Aborted|Segmentation fault|Bus error|"
    r"Illegal instruction|Floating point exception)\b"
)
_TABLE_HEAD = re.compile(r"^\s*(?:Failures:\s*$|Root Cause \(first observed failure\))")
_TABLE_ROW = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback)\s*: (.*)$")
_TABLE_RANK = re.compile(r"(\d+) \(local_rank: (\d+)\)")
_TABLE_START = re.compile(r"^\s*rank\s*: \d+ \(local_rank: \d+\)")
_TABLE_CODE = re.compile(r"(-?\d+) \(pid: (\d+)\)")
_TABLE_END = re.compile(r"^=+\s*$")
_POD = re.compile(r"^Name:\s{2,}(\S+)\s*$")
_POD_ROW = re.compile(
    r"^\s*(Node|State|Last State|Reason|Exit Code|Finished|Namespace):\s+(\S(?:.*\S)?)\s*$"
)


@dataclass(slots=True)
class ExitSeen:
    """The end of one process, as a line tells it; what is not known is left at its default."""

    row: int
    line: LogLine
    rank: int = UNKNOWN_RANK
    task: int = UNKNOWN_RANK
    local: int = -1
    pid: int = 0
    node: str = ""
    code: int | None = None
    signal: int | None = None
    stamp: Stamp | None = None
    after_kill: bool = False
    reason: str = ""


@dataclass(slots=True)
class _Table:
    """A table that is being read: the failures of torchelastic, or a pod."""

    kind: str
    seen: int
    pod: str = ""
    reason: str = ""
    host: str = ""
    rank: int = UNKNOWN_RANK
    local: int = -1
    stamp: Stamp | None = None
    last: ExitSeen | None = None


class ExitReader:
    """Reads the ends of processes in one log, of which it gets each line that may tell one."""

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}
        self._killed: set[int] = set()
        self._is_ending = False
        # By the prefix of their launcher: with several nodes, each one has ranks from 0 on.
        self._subprocesses: dict[str, set[int]] = {}
        self._lines = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may belong to a table."""
        return bool(self._tables)

    def read(self, line: LogLine, row: int) -> Iterator[ExitSeen]:
        """Take a line; yield the ends that it tells."""
        self._lines += 1
        text = line.text
        if self._tables:
            yield from self._read_table(line, text, row)
        if _TABLE_HEAD.match(text):
            self._tables[line.owner] = _Table("elastic", self._lines)
        elif line.owner not in self._tables and _TABLE_START.match(text):
            # A table of which the head was cut off; its host stands before the rank.
            self._tables[line.owner] = table = _Table("elastic", self._lines)
            self._elastic_row(table, line, text, row)
        elif match := _POD.match(text):
            self._tables[line.owner] = _Table("pod", self._lines, pod=match[1])
        elif match := _PROCESS.match(text):
            rank = int(match[1][:9])
            self._tables[line.owner] = _Table("mpi", self._lines, rank=rank)
        elif match := _BAD_END.match(text):
            rank = int(match[1][:9])
            self._tables[line.owner] = _Table("mpi", self._lines, host=match[3], rank=rank)
        elif _STEP_END.search(text):
            self._is_ending = True
        elif match := _CLOSING.search(text):
            self._killed.add(int(match[1][:9]))
        elif match := _KILLING.search(text):
            self._note_subprocess(line.owner, int(match[1][:9]))
        else:
            yield from self._read_one(line, text, row)

    def _note_subprocess(self, owner: str, pid: int) -> None:
        if owner in self._subprocesses or len(self._subprocesses) < MAX_TASKS:
            self._subprocesses.setdefault(owner, set()).add(pid)

    def _read_one(self, line: LogLine, text: str, row: int) -> Iterator[ExitSeen]:
        for pattern, make in _FORMS:
            if match := pattern.search(text):
                seen = make(ExitSeen(row, line, stamp=line.stamp), match)
                yield replace(seen, after_kill=seen.pid in self._killed)
                return
        if match := _DEEPSPEED.search(text):
            yield self._read_deepspeed(line, text, row, match)
        elif match := _SRUN.search(text):
            yield from self._read_srun(line, row, match)
        elif match := _SRUN_DONE.search(text):
            for task in expand_tasks(match[1]):
                yield ExitSeen(row, line, task=task, code=0, stamp=line.stamp)

    def _read_deepspeed(self, line: LogLine, text: str, row: int, match: re.Match[str]) -> ExitSeen:
        seen = _with_code(ExitSeen(row, line, stamp=line.stamp), int(match[1][:6]))
        ranks = _DEEPSPEED_RANK.search(text)
        if ranks is not None:
            local = int(ranks[1][:9])
            # The launcher prints the command it started last, whichever process failed: where
            # fewer processes are listed than it must have, lines were cut out.
            if local + 1 < len(self._subprocesses.get(line.owner, ())):
                seen.local = local
        return seen

    def _read_srun(self, line: LogLine, row: int, match: re.Match[str]) -> Iterator[ExitSeen]:
        how = match[3]
        code = _SRUN_CODE.search(how)
        signal = None if code else _SIGNALS.get(how.strip().lower())
        if code is None and signal is None:
            return
        for task in expand_tasks(match[2]):
            seen = ExitSeen(row, line, task=task, signal=signal, stamp=line.stamp)
            seen.node = match[1] if "[" not in match[1] else ""
            seen.reason = how.strip()
            seen.after_kill = self._is_ending and signal in (9, 15)
            yield _with_code(seen, int(code[1][:6])) if code else seen

    def _read_table(self, line: LogLine, text: str, row: int) -> Iterator[ExitSeen]:
        table = self._tables.get(line.owner)
        if table is not None:
            reader = {"elastic": self._elastic_row, "pod": self._pod_row, "mpi": self._mpi_row}
            taken, seen = reader[table.kind](table, line, text, row)
            if taken:
                table.seen = self._lines
            if seen is not None:
                yield seen
        for owner in [
            owner for owner, one in self._tables.items() if self._lines - one.seen > _MAX_STRANGERS
        ]:
            del self._tables[owner]

    def _elastic_row(
        self, table: _Table, line: LogLine, text: str, row: int
    ) -> tuple[bool, ExitSeen | None]:
        if _TABLE_END.match(text):
            del self._tables[line.owner]
            return False, None
        match = _TABLE_ROW.match(text)
        if match is None:
            return False, None
        name, value = match[1], match[2]
        if name == "time":
            table.stamp = read_stamp("iso", value)
        elif name == "host":
            table.host = value.strip()
        elif name == "rank" and (found := _TABLE_RANK.match(value)):
            table.rank, table.local = int(found[1][:9]), int(found[2][:9])
        elif name == "exitcode" and (found := _TABLE_CODE.match(value)):
            pid = int(found[2][:9])
            seen = ExitSeen(row, line, table.rank, local=table.local, pid=pid, node=table.host)
            seen.stamp, seen.after_kill = table.stamp, pid in self._killed
            table.rank, table.local = UNKNOWN_RANK, -1
            return True, _with_code(seen, int(found[1][:6]))
        return True, None

    def _pod_row(
        self, table: _Table, line: LogLine, text: str, row: int
    ) -> tuple[bool, ExitSeen | None]:
        match = _POD_ROW.match(text)
        if match is None:
            return False, None
        name, value = match[1], match[2]
        if name in ("State", "Last State"):
            table.reason, table.last = "", None
        elif name == "Reason":
            table.reason = value
        elif name == "Finished" and table.last is not None:
            table.last.stamp = read_stamp("mail", value)
        elif name == "Exit Code" and value.isdecimal():
            seen = ExitSeen(row, line, node=table.pod, reason=table.reason)
            table.last = _with_code(seen, int(value[:6]))
            return True, table.last
        return True, None

    def _mpi_row(
        self, table: _Table, line: LogLine, text: str, row: int
    ) -> tuple[bool, ExitSeen | None]:
        if match := _BAD_SIGNAL.match(text):
            del self._tables[line.owner]
            signal = int(match[1][:3])
            # Hydra ends the other ranks by SIGKILL, and has a block for each of them, too.
            task = UNKNOWN_RANK if signal in (9, 15) else table.rank
            seen = ExitSeen(row, line, task=task, node=table.host, signal=signal, stamp=line.stamp)
            return True, seen
        match = _PROCESS_CODE.match(text)
        if match is None:
            return False, None
        del self._tables[line.owner]
        seen = ExitSeen(row, line, task=table.rank, stamp=line.stamp)
        return True, _with_code(seen, int(match[1][:6]))


def _make_elastic(seen: ExitSeen, match: re.Match[str]) -> ExitSeen:
    seen.local, seen.pid = int(match[2][:9]), int(match[3][:9])
    return _with_code(seen, int(match[1][:6]))


def _make_mpirun(seen: ExitSeen, match: re.Match[str]) -> ExitSeen:
    seen.task, seen.pid, seen.node = int(match[1][:9]), int(match[2][:9]), match[3]
    seen.signal = int(match[4][:3])
    return seen


def _make_child(seen: ExitSeen, match: re.Match[str]) -> ExitSeen:
    seen.pid = int(match[1][:9])
    # Lightning puts the child's number before it; without a signal, of the first by number.
    if seen.line.rank != UNKNOWN_RANK and match[2].startswith("-"):
        seen.local = seen.line.rank
    return _with_code(seen, int(match[2][:6]))


def _make_container(seen: ExitSeen, match: re.Match[str]) -> ExitSeen:
    seen.node = match[1]
    return _with_code(seen, int(match[2]))


def _make_pals(seen: ExitSeen, match: re.Match[str]) -> ExitSeen:
    seen.node, seen.rank = match[1], min(int(match[2]), MAX_RANK)
    if match[3]:
        return _with_code(seen, int(match[3]))
    seen.signal = int(match[4])
    return seen


def _make_spawned(seen: ExitSeen, match: re.Match[str]) -> ExitSeen:
    seen.local = int(match[1][:9])
    if match[2]:
        return _with_code(seen, int(match[2][:6]))
    seen.signal = _NAMES.get(match[3])
    return seen


def _make_command(seen: ExitSeen, match: re.Match[str]) -> ExitSeen:
    seen.reason = "CalledProcessError"
    if match[1]:
        seen.signal = _NAMES.get(match[1])
        return seen
    return _with_code(seen, int(match[2][:6]))


def _make_shell(seen: ExitSeen, match: re.Match[str]) -> ExitSeen:
    seen.pid, seen.signal = int(match[1][:9]), _SIGNALS[match[2].lower()]
    # The shell prints the command behind it.
    if local := _LOCAL_RANK.search(match.string, match.end()):
        seen.local = int(local[1])
    return seen


_FORMS: tuple[tuple[re.Pattern[str], Callable[[ExitSeen, re.Match[str]], ExitSeen]], ...] = (
    (_ELASTIC, _make_elastic),
    (_MPIRUN, _make_mpirun),
    (_CHILD, _make_child),
    (_CONTAINER, _make_container),
    (_PALS, _make_pals),
    (_SPAWNED, _make_spawned),
    (_COMMAND, _make_command),
    (_SHELL, _make_shell),
)


def _with_code(seen: ExitSeen, code: int) -> ExitSeen:
    """Set the code of an end; a negative one, or one above 128, is a signal."""
    if code < 0:
        seen.signal = -code
    elif _FATAL_CODE < code < _FATAL_CODE + 32:
        seen.signal = code - _FATAL_CODE
    elif code == 247:  # noqa: PLR2004 - what `sys.exit(-9)` becomes
        seen.signal = 9
    else:
        seen.code = code
    return seen
