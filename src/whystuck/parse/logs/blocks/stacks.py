"""Stacks of processes that still ran, as text: py-spy, faulthandler, gdb, and summaries of many.

People paste them alone, one behind the other, or between the lines of a log. The stacks of each
writer are followed apart from those of others, as tracebacks are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from whystuck.evidence.live import ThreadStack
from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.numbers import is_number
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.stack_commands import find_local_rank, find_rank
from whystuck.parse.logs.blocks.stack_headings import find_heading
from whystuck.parse.logs.blocks.stack_hosts import find_host
from whystuck.parse.logs.lines import LogLine

# One of them is in the first line of each thread; healthy logs have none.
STACK_MARKS = (
    b" (active",
    b" (idle",
    b"(most recent call first)",
    b" (LWP ",
    b"#0  0x",
)
_MAX_STRANGERS = 200
_MAX_THREADS = 256
_MAX_FRAMES = 200
_MAX_ALIKE = 4096
# Lines between the name of a rank and its stack: a fence, the command, versions.
_MAX_PREAMBLE = 6

# What people and loggers leave before a line of a stack.
_BEFORE = re.compile(r"^(?:>\s?|(?:DEBUG|INFO|WARN|WARNING|ERROR):? (?=\s|Thread|Process|File|#))+")
_SPY = re.compile(
    r"^\s*Thread (?P<number>0x[0-9A-Fa-f]{1,16}|\d{1,20}) ?"
    r"\((?P<state>(?:active|idle)[a-z+ ]{0,20})\)(?:: \"(?P<name>[^\"]{0,200})\")?"
    r"\s*(?P<note>#.{0,200})?$"
)
_FAULT = re.compile(
    r"^\s*(?:(?P<current>Current thread|Thread) 0x(?P<number>[0-9A-Fa-f]{1,16})"
    r"(?: \[(?P<name>.{0,200})\])?|Stack) \(most recent call first\):"
)
_GDB = re.compile(
    r"^\s*Thread (?P<order>\d{1,6}) \(Thread 0x[0-9a-f]{1,16} \(LWP (?P<number>\d{1,10})\)"
    r"(?: \"(?P<name>[^\"]{0,200})\")?"
)
_GDB_BARE = re.compile(r"^\s*(?:\(gdb\) )?#0\s+0x[0-9a-f]{6,16} in ")
_SUMMARY = re.compile(
    r"^\s*(\d{1,6}) ?x\s+Thread (?:\S{1,30} )?\((?:active|idle)[a-z+ ]{0,20}\)(.+)$"
)
_PLACE = re.compile(r"\b(?:pod|host|node|worker)[=:] ?([A-Za-z0-9][\w.-]{0,62})")
_PROCESS = re.compile(r"^\s*Process (\d{1,10}): ?(.{0,2000})$")
_SPY_FRAME = re.compile(r"^\s{2,}(\S.{0,500}?) \((.{1,1000}?)(?::(\d{1,9}))?\)\s*$")
_FAULT_FRAME = re.compile(r'^\s*File "(.{1,1000})", line (\d{1,9}|\?\?\?) in (.{1,500})$')
_GDB_FRAME = re.compile(
    r"^\s*#\d{1,3}\s+(?:0x[0-9a-f]{1,16} in )?(?P<function>[^\s(].{0,500}?) ?\("
    r"(?:.{0,2000}?\) (?:at (?P<file>\S{1,1000}?):(?P<line>\d{1,9})|from (?P<library>\S{1,1000})))?"
)
# What gdb prints before the first frame, a line for each thread among it.
_GDB_NOISE = re.compile(
    r"^\s*(?:\[New (?:LWP|Thread)\b|\[Thread debugging|Using host libthread_db|0x[0-9a-f]{6,16} in "
    r"|warning: |Reading symbols|Attaching to |\[Inferior \d)"
)
# The process of the rank, where a heading tells both.
_HEADING_PID = re.compile(r"\b(?:pid|PID)[ =:#]{0,3}(\d{1,10})\b")
_NOTE_RANK = re.compile(r"\brank[ =:]{0,2}(\d{1,7})\b", re.IGNORECASE)
_LAST = ("<module>", "_bootstrap", "_shutdown", "_run_module_as_main", "_bootstrap_inner")
# Stands for the outer frames, where a stack was cut.
CUT = Frame("<cut>", "", 0)


@dataclass(slots=True)
class StackSeen:
    """The threads of one process.

    Attributes:
        row: The line where they begin, from 1.
        line: That line, for whose it is and when it was.
        pid: The process, 0 when unknown.
        rank: The rank that a heading names.
        local: The local rank in its command, -1 when none is.
        is_worker: Whether it is a process of a data loader.
        node: The host or pod that a summary names.
        alike: How many processes have these stacks.
        threads: The threads, each innermost frame first.
        source: What printed them.
    """

    row: int
    line: LogLine
    pid: int = 0
    rank: int = UNKNOWN_RANK
    local: int = -1
    is_worker: bool = False
    node: str = ""
    alike: int = 1
    threads: list[ThreadStack] = field(default_factory=list)
    source: str = "py-spy"


@dataclass(slots=True)
class _Open:
    """A process whose stacks are being read; ``seen`` is the number of its last line."""

    process: StackSeen
    seen: int = 0
    frames: list[Frame] = field(default_factory=list)
    command: str = ""


@dataclass(slots=True)
class _Heading:
    """What was said before the stacks that come next."""

    rank: int = UNKNOWN_RANK
    pid: int = 0
    command: str = ""
    seen: int = -_MAX_STRANGERS
    # The process that is said to be of the rank; the rank that a prefix says wrote it.
    rank_pid: int = 0
    writer: int = UNKNOWN_RANK
    node: str = ""


class StackReader:
    """Follows the stacks of all writers of one log."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._heading = _Heading()
        self._last_owner = ""
        self._lines = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may belong to a stack."""
        return bool(self._open)

    def begins(self, text: str) -> bool:
        """Tell whether a stack begins in a line; what stands before it is of use then."""
        return not self._open and _find_head(_BEFORE.sub("", text)) is not None

    def read(self, line: LogLine, row: int, before: Iterable[LogLine] = ()) -> Iterator[StackSeen]:
        """Take the next line; yield the processes that it ends."""
        for earlier in before:
            self._lines += 1
            self._note_heading(_BEFORE.sub("", earlier.text), earlier.rank)
        self._lines += 1
        text = _BEFORE.sub("", line.text)
        if summary := _SUMMARY.match(text):
            yield _read_summary(summary, line, row)
        elif (head := _find_head(text)) is not None and not self._is_first_frame(head, line.owner):
            yield from self._begin(head, line, row)
        elif (
            self._open
            and not self._take_frame(text, line.owner)
            and self._note_heading(text, line.rank)
        ):
            yield from self._close(line.owner)
        for owner in [
            owner for owner, one in self._open.items() if self._lines - one.seen > _MAX_STRANGERS
        ]:
            yield from self._close(owner)

    def finish(self) -> Iterator[StackSeen]:
        """Yield the stacks that the log ends in."""
        for owner in list(self._open):
            yield from self._close(owner)

    def _is_first_frame(self, head: re.Match[str], owner: str) -> bool:
        """Tell whether a frame that may begin the stack of a process is that of a known thread."""
        known = self._find_open(owner)
        return (
            head.re is _GDB_BARE
            and known is not None
            and known.process.source == "gdb"
            and (bool(known.process.threads) and not known.frames)
        )

    def _find_open(self, owner: str) -> _Open | None:
        """Find the process that a writer has open; only its first line may have all its names."""
        known = self._open.get(owner)
        if known is not None:
            return known
        owners = (self._last_owner, *reversed(self._open))
        return next(
            (self._open[one] for one in owners if one in self._open and one.startswith(owner)), None
        )

    def _note_heading(self, text: str, writer: int) -> bool:
        """Note a process or a rank that what follows is of."""
        if match := _PROCESS.match(text):
            is_near = self._lines - self._heading.seen <= _MAX_PREAMBLE
            pid, named = int(match[1]), self._heading.rank_pid
            is_own = is_near and not self._heading.pid and named in (0, pid)
            rank = self._heading.rank if is_own else UNKNOWN_RANK
            rank = find_rank(match[2]) if rank == UNKNOWN_RANK else rank
            node = self._heading.node if is_near else ""
            self._heading = _Heading(rank, pid, match[2], self._lines, writer=writer, node=node)
        elif match := find_heading(text[:200], writer):
            told = match.groupdict()
            number = int(told.get("rank") or told.get("last") or match["said"])
            rank = number if number <= MAX_RANK else UNKNOWN_RANK
            process = _HEADING_PID.search(text[:200])
            own = int(process[1]) if process else 0
            self._heading = _Heading(rank, seen=self._lines, rank_pid=own, writer=writer)
        elif node := find_host(text):
            self._heading = _Heading(seen=self._lines, writer=writer, node=node)
        else:
            if _GDB_NOISE.match(text):
                self._heading.seen += 1
            elif writer not in (UNKNOWN_RANK, self._heading.writer, self._heading.rank):
                self._heading = _Heading()  # somebody else speaks: it was no heading
            return False
        return True

    def _begin(self, head: re.Match[str], line: LogLine, row: int) -> Iterator[StackSeen]:
        """Begin a thread, in the process that is open or in a new one."""
        known = self._open.get(line.owner)
        if known is not None and _is_other(known, head):
            yield from self._close(line.owner)
            known = None
        if known is None:
            known = self._open_process(head, line, row)
        self._end_thread(known)
        known.seen = self._lines
        known.process.pid = known.process.pid or _find_pid(head)
        self._last_owner = line.owner
        if len(known.process.threads) < _MAX_THREADS:
            known.process.threads.append(_make_thread(head, known.process.pid))
        if head.re is _GDB_BARE:
            self._take_frame(head.string, line.owner)

    def _open_process(self, head: re.Match[str], line: LogLine, row: int) -> _Open:
        process = StackSeen(row, line, source=_name_source(head))
        heading = self._heading
        if self._lines - heading.seen <= _MAX_PREAMBLE + (2 if heading.pid else 0):
            is_own = line.rank in (UNKNOWN_RANK, heading.writer, heading.rank)
            process.pid, process.rank = heading.pid, heading.rank if is_own else UNKNOWN_RANK
            process.node, process.local = heading.node, find_local_rank(heading.command)
            own_pid = process.pid or _find_pid(head)
            if heading.rank_pid and own_pid and own_pid != heading.rank_pid:
                process.rank = UNKNOWN_RANK
        self._heading = _Heading()
        if note := _NOTE_RANK.search(head.groupdict().get("note") or ""):
            process.rank = int(note[1])
        known = self._open[line.owner] = _Open(process, self._lines, command=heading.command)
        return known

    def _take_frame(self, text: str, owner: str) -> bool:
        known = self._find_open(owner)
        if known is None or (frame := _read_frame(text, known.process.source)) is None:
            return False
        if len(known.frames) < _MAX_FRAMES:
            known.frames.append(frame)
        known.seen = self._lines
        return True

    def _end_thread(self, known: _Open) -> None:
        """Give the thread that is read its frames."""
        if known.process.threads and known.frames:
            last = known.process.threads[-1]
            known.process.threads[-1] = replace(last, frames=(*known.frames,))
        known.frames = []

    def _close(self, owner: str) -> Iterator[StackSeen]:
        known = self._open.pop(owner, None)
        if known is None:
            return
        self._end_thread(known)
        process = known.process
        process.threads = _mark_main([one for one in process.threads if one.frames])
        if process.threads:
            process.is_worker = _is_worker(process.threads, known.command)
            yield process


def _find_head(text: str) -> re.Match[str] | None:
    for pattern in (_SPY, _FAULT, _GDB, _GDB_BARE):
        if match := pattern.match(text):
            return match
    return None


def _name_source(head: re.Match[str]) -> str:
    return {_SPY: "py-spy", _FAULT: "faulthandler"}.get(head.re, "gdb")


def _is_other(known: _Open, head: re.Match[str]) -> bool:
    """Tell whether a thread is of another process, or of a later look, than those before."""
    if _name_source(head) != known.process.source or head.re is _GDB_BARE:
        return True
    numbers = {one.thread_id for one in known.process.threads}
    if head.re is _SPY and head["name"] == "MainThread":
        return any(one.name == "MainThread" for one in known.process.threads)
    return _read_number(head) in numbers


def _read_number(head: re.Match[str]) -> int:
    number = head.groupdict().get("number") or "0"
    return int(number, 16 if head.re is _FAULT or number.startswith("0x") else 10)


def _find_pid(head: re.Match[str]) -> int:
    """Return the process, where the main thread tells it: its number is that of the process."""
    is_main = head.re is _SPY and head["name"] == "MainThread" and is_number(head["number"])
    is_main = is_main or (head.re is _GDB and head["order"] == "1")
    return _read_number(head) if is_main else 0


def _make_thread(head: re.Match[str], pid: int) -> ThreadStack:
    told = head.groupdict()
    number, state = _read_number(head), told.get("state") or ""
    is_main = told.get("name") == "MainThread" or told.get("order") == "1"
    is_main = is_main or (head.re is _SPY and number == pid)
    return ThreadStack(
        number,
        told.get("name") or "",
        (),
        is_main=is_main,
        owns_gil="gil" in state if state else None,
        active="active" in state if state else None,
    )


def _read_frame(text: str, source: str) -> Frame | None:
    if source == "faulthandler":
        if match := _FAULT_FRAME.match(text):
            number = int(match[2]) if is_number(match[2]) else 0
            return Frame(match[3].strip(), match[1], number)
        return None
    if source == "gdb":
        if match := _GDB_FRAME.match(text):
            file = match["file"] or match["library"] or "native"
            return Frame(match["function"], file, int(match["line"] or 0))
        return None
    if match := _SPY_FRAME.match(text):
        return Frame(match[1], match[2], int(match[3] or 0))
    return None


def _mark_main(threads: list[ThreadStack]) -> list[ThreadStack]:
    """Find the main thread, and say where outer frames are missing."""
    if threads and not any(one.is_main for one in threads):
        # faulthandler prints the main thread last.
        modules = [i for i, one in enumerate(threads) if one.frames[-1].function == "<module>"]
        at = modules[-1] if modules else len(threads) - 1
        threads[at] = replace(threads[at], is_main=True)
    return [
        one
        if one.frames[-1].function.rpartition(".")[2] in _LAST
        else replace(one, frames=(*one.frames, CUT))
        for one in threads
    ]


def _is_worker(threads: Iterable[ThreadStack], command: str) -> bool:
    if "pt_data_worker" in command:
        return True
    main = next((one for one in threads if one.is_main), None)
    return main is not None and any(
        frame.function.endswith("_worker_loop") and frame.file.endswith("_utils/worker.py")
        for frame in main.frames
    )


def _read_summary(match: re.Match[str], line: LogLine, row: int) -> StackSeen:
    """Read one line for many processes: ``29x  Thread (active) inner <- outer <- ...``."""
    text, place = match[2], _PLACE.search(match[2])
    if place is not None:
        text = text[: place.start()]
    frames = []
    for part in text.split("<-")[:_MAX_FRAMES]:
        found = re.match(r"^\s*(\S.{0,500}?)(?: \((.{1,1000}?)(?::(\d{1,9}))?\))?\s*$", part)
        if found:
            frames.append(Frame(found[1], found[2] or "native", int(found[3] or 0)))
    thread = ThreadStack(0, "MainThread", (*frames, CUT), is_main=True)
    rank = _NOTE_RANK.search(match[2])
    alike = min(int(match[1]), _MAX_ALIKE)
    return StackSeen(
        row,
        line,
        rank=int(rank[1]) if rank and alike == 1 else UNKNOWN_RANK,
        node=place[1] if place else "",
        alike=alike,
        threads=[thread],
        source="summary",
    )
