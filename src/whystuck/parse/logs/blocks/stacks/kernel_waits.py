"""Where processes are in the kernel: `/proc/PID/stack`, `wchan` and `status`, and hung tasks.

What is told of one process is one row: its state, its name, and the functions that it is in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

WAIT_MARKS = (
    b"/proc/",
    b"wchan",
    b"[<0>] ",
    b"[<ffffffff",
    b"(disk sleep)",
    b"(tracing stop)",
    b"T (stopped)",
    b" blocked for more than ",
)
# Lines between a heading and what is told below it: `Call Trace:`, other fields of a status.
_MAX_STRANGERS = 12
_MAX_FRAMES = 24

_FILE = re.compile(r"/proc/(\d{1,7})/(?:task/\d{1,7}/)?(stack|wchan|status|stat)\b[:>=\s]{0,4}")
_FRAME = re.compile(
    r"^\s{0,12}(?:\[<(?:0|[0-9a-f]{8,16})>\] )?(?:\? )?([A-Za-z_][\w.]{1,79})"
    r"\+0x[0-9a-f]{1,6}/0x[0-9a-f]{1,6}(?: \[(\w{1,40})\])?\s*$"
)
_STATE = re.compile(r"(?:^|[\s:])[Ss]tate:?\s{1,8}([RSDTtZXI]) \(")
_NAME = re.compile(r"^Name:\s{1,8}(\S{1,40})\s*$")
_PID = re.compile(r"^(?:Tgid|Pid):\s{1,8}(\d{1,7})\s*$")
# A number that stands alone begins another process where stacks are printed one below the other.
_ALONE = re.compile(r"^\W{0,12}(?:[Pp][Ii][Dd]|[Pp]rocess)?[\W_]{0,4}(\d{2,7})\W{0,12}$")
_HUNG = re.compile(r"task (\S{1,40}):(\d{1,9}) blocked for more than \d{1,9} seconds")
_TASK = re.compile(r"\btask:\S{1,40}\s{1,20}state:([RSDTtZXI]) .{0,60}\bpid:\s{0,8}(\d{1,9})\b")
# The file has no line end: a prompt may stand behind it.
_WORD = re.compile(r"^\s{0,4}([a-z_][\w.]{2,79}|0)(?:[@\[].{0,200})?\s*$")
# A loop of a shell over processes, that prints what it reads of each one below the other.
_LOOP = re.compile(r"/proc/(?:\$\{?\w{1,20}\}?|\*)/(?:status|stat|wchan|stack)\b")
# The rank of a process, as such a loop prints it of its environment or by itself.
_RANK = re.compile(r"^\W{0,12}(?:[Gg]lobal[ _])?(?:RANK|[Rr]ank)[=: ]{1,2}(\d{1,7})\W{0,12}$")
_NUMBERED = re.compile(
    r"^\W{0,12}(?:pid[ =:]{0,3})?(?P<pid>\d{2,7})\b[\W_]{1,4}(?:global[ _])?rank[=: ]{0,2}"
    r"(?P<rank>\d{1,7})\W{0,12}$",
    re.IGNORECASE,
)
# What stands before the state, and behind it, where a process has one line.
_ROW_PID = re.compile(
    r"^\W{0,12}(?:pid[ =:]{0,3})?(\d{2,7})(?=[\s,|]|: )|\bpid[ =:]{1,3}(\d{2,7})\b", re.IGNORECASE
)
_ROW_RANK = re.compile(
    r"(?<![\w-])(?<!local )(?:global[ _])?rank[ =:#]{0,2}(\d{1,7})\b", re.IGNORECASE
)
_ROW_WAIT = re.compile(r"^\([a-z ]{1,20}\)[\s,|]{1,4}(?:wchan[ =:]{1,3})?([a-z_]\w{2,79})\s{0,8}$")
_TRACER = re.compile(r"^TracerPid:\s{1,8}([1-9]\d{0,6})\s*$")
# All in one line of somebody's own.
_TOLD = re.compile(r"\bwchan[ =:]{1,3}([a-z_][\w.]{2,79})")
_TOLD_STATE = re.compile(r"\bstate[ =:]{1,3}([RSDTt])\b", re.IGNORECASE)
_TOLD_PID = re.compile(r"\bpid[ =:]{1,3}(\d{1,7})\b", re.IGNORECASE)


class WaitReader:
    """Follows what is told of one process at a time."""

    def __init__(self) -> None:
        self._now: TabledSeen | None = None
        self._left = 0
        self._file = ""
        # Where a loop prints the rank: before what it reads of a process, behind it, or nowhere.
        self._order = 0
        self._own = ""

    @property
    def is_open(self) -> bool:
        """Whether the next lines may tell more."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the process that it is the first to tell of."""
        text = line.text
        if is_mark and (match := _HUNG.search(text)):
            yield from self._begin(line, row, match[2], {"command": match[1], "state": "D"})
        elif match := _FILE.search(text):
            yield from self._begin(line, row, match[1])
            self._file = match[2]
            yield from self._take(line, row, text[match.end() :])
        elif is_mark and _LOOP.search(text):
            self._open_loop(text)
        elif is_mark and "wchan" in text and (match := _TOLD.search(text)):
            yield from _read_told(line, row, match[1])
        elif (is_mark or self.is_open) and (found := _read_row(line, row)):
            self._left = _MAX_STRANGERS * self.is_open
            yield found
        elif self.is_open or is_mark:
            yield from self._take(line, row, text)

    def _open_loop(self, text: str) -> None:
        """Begin a loop over processes, none of which is told of yet."""
        self._now, self._left, self._file, self._own = None, _MAX_STRANGERS, "", ""
        place = text.find("RANK")
        is_first = place < (match.start() if (match := _LOOP.search(text)) else 0)
        self._order = 0 if place < 0 else 1 if is_first else -1

    def _take_rank(self, rank: str) -> None:
        """Take a rank that a loop prints, in the order in which it does so."""
        now, self._left = self._now, _MAX_STRANGERS
        is_told = now is not None and "own" in now.groups
        if self._order < 0:
            is_of_it = now is not None and not is_told
        else:
            # Above the rank may stand the number, but not the state.
            is_of_it = now is not None and not is_told and not now.groups["state"]
        if now is not None and is_of_it and self._order:
            now.groups["own"] = rank
        elif self._order > 0:
            self._now, self._own = None, rank

    def _begin(
        self, line: LogLine, row: int, pid: str, told: dict[str, str] | None = None
    ) -> Iterator[TabledSeen]:
        """Begin another process, or tell more of the same."""
        self._left, self._file = _MAX_STRANGERS, ""
        if self._now is None or self._now.groups["pid"] != pid:
            self._now = _make(line, row, pid)
            if self._own:
                self._now.groups["own"], self._own = self._own, ""
            yield self._now
        self._now.groups.update(told or {})

    def _take(self, line: LogLine, row: int, text: str) -> Iterator[TabledSeen]:
        """Take what a line says of the process."""
        if match := _FRAME.match(text):
            # The innermost function is the first.
            yield from self._tell_where(line, row, match[1], match[2] or "")
        elif match := _STATE.search(text):
            yield from self._ensure(line, row, is_state=True)
            self._note("state", match[1])
        elif self.is_open:
            yield from self._take_more(line, row, text)

    def _take_more(self, line: LogLine, row: int, text: str) -> Iterator[TabledSeen]:
        """Take what a line says that tells nothing alone."""
        if match := _TASK.search(text):
            self._note("state", match[1])
        elif match := _NAME.match(text):
            self._note("command", match[1])
        elif match := _TRACER.match(text):
            self._note("tracer", match[1])
        elif match := _NUMBERED.match(text):
            yield from self._begin(line, row, match["pid"], {"own": match["rank"]})
        elif match := _RANK.match(text):
            self._take_rank(match[1])
        elif self._file == "wchan" and (match := _WORD.match(text)):
            yield from self._tell_where(line, row, match[1], "")
            self._file = ""
        elif match := _PID.match(text) or _ALONE.match(text):
            yield from self._begin(line, row, match[1])
        else:
            self._left -= bool(text.strip())

    def _ensure(self, line: LogLine, row: int, *, is_state: bool = False) -> Iterator[TabledSeen]:
        """Begin a process of which no number is told, where none is open."""
        now = self._now
        # A process has one state: another one is of the next process.
        is_next = is_state and now is not None and now.groups["pid"] == "0" and now.groups["state"]
        if now is None or is_next or not self.is_open:
            self._now = None
            yield from self._begin(line, row, "0")

    def _tell_where(self, line: LogLine, row: int, name: str, module: str) -> Iterator[TabledSeen]:
        yield from self._ensure(line, row)
        if self._now is None:
            return
        self._left = _MAX_STRANGERS
        groups = self._now.groups
        frames = groups["frames"].split()
        if len(frames) < _MAX_FRAMES and name != "0":
            groups["frames"] = " ".join([*frames, name])
            known = groups["modules"].split()
            if module and module not in known:
                groups["modules"] = " ".join([*known, module])

    def _note(self, name: str, value: str) -> None:
        if self._now is not None:
            self._now.groups[name] = value
            self._left = _MAX_STRANGERS


def _make(line: LogLine, row: int, pid: str) -> TabledSeen:
    groups = {"pid": pid, "state": "", "command": "", "wait": "", "frames": "", "modules": ""}
    if line.rank != UNKNOWN_RANK:
        groups["own"] = str(line.rank)
    return TabledSeen("table.wait", row, line, groups)


def _read_told(line: LogLine, row: int, wait: str) -> Iterator[TabledSeen]:
    """Read a line that has the state and the function of a process in words of its own."""
    state, pid = _TOLD_STATE.search(line.text), _TOLD_PID.search(line.text)
    seen = _make(line, row, pid[1] if pid else "0")
    seen.groups |= {"state": state[1].upper() if state else "", "frames": wait}
    yield seen


def _read_row(line: LogLine, row: int) -> TabledSeen | None:
    """Read a line that has the number or the rank of a process before its state."""
    state = _STATE.search(line.text)
    before = line.text[: state.start()] if state else ""
    pid, rank = _ROW_PID.search(before), _ROW_RANK.search(before)
    if state is None or not (pid or rank):
        return None
    number = (pid[1] or pid[2]) if pid else "0"
    seen = _make(line, row, number)
    wait = _ROW_WAIT.match(line.text[state.end() - 1 :])
    seen.groups |= {"state": state[1], "frames": wait[1] if wait else ""}
    if rank:
        seen.groups["own"] = rank[1]
    return seen
