"""Python tracebacks in logs: mixed with other lines, prefixed, chained, grouped, in boxes.

The lines of each writer are followed apart from those of others. A line that cannot belong to a
traceback is passed over, as healthy output of another rank may stand in the middle of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.lines.lines import LogLine

MAX_MESSAGE_LINES = 40
MAX_FRAMES = 300
MAX_ORIGINS = 16
# Lines of others in a row after which a traceback is taken as cut off, and as over.
MAX_STRANGERS = 5000
MAX_STRANGERS_BEHIND = 1500
# So many lines of others may stand between a heading and its traceback.
_MAX_BETWEEN = 64
_SWEEP = 256
_MAX_OPEN = 4096
_MAX_LINE = 2000

_START = re.compile(r"(?:^|[│╭|+─\s])Traceback \(most recent call last\)")
# Torch's checkpoints print the tracebacks of all ranks on each of them.
_OF_RANK = re.compile(r"Traceback \(most recent call last\): \(RANK (\d{1,7})\)")
_ORIGINAL = re.compile(r"^\s*Original Traceback \(most recent call last\):")
FRAME = re.compile(r'^\s+File "(.+)", line (\d+)(?:, in (.+))?$')
_RICH_FRAME = re.compile(r"^(\S.*?):(\d+) in (\S+)\s*$")
_EDGES = "│╮╯"
_BOX = re.compile(r"^\s*[│╭╰]\s?(.*)")
_GROUP_HEAD = re.compile(r"^\s*\+ Exception Group Traceback \(most recent call last\):")
_GROUP_LINE = re.compile(r"^\s+(?:(?P<split>\+-(?:\+-+|-+) [\d.]+ -+$)|\+-+$|\| ?(?P<text>.*))")
_CHAIN = re.compile(
    r"^\s*(?:During handling of the above exception, another exception occurred:|"
    r"The above exception was the direct cause of the following exception:)"
)
_RAISED = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: ?(.*)|$)")
_SPAWNED = re.compile(r"^-- Process (\d+) terminated with the following error")
HEAD = re.compile(r"^Exception (?:in thread (\S[^:]{0,99})|ignored in)")
_IGNORED = " ignored"
# The table of torchelastic holds tracebacks, two blanks further in.
_IN_TABLE = re.compile(r"^\s*traceback : Traceback \(most recent call last\)")
_TABLE_RANK = re.compile(r"^\s*rank +: (\d{1,7}) \(local_rank: ")
_TABLE_END = re.compile(r"^(?:\s*[=-]{4,}\s*$|\[\d+\]:)")
# Ray names the worker whose exception it prints.
_RAY_CALL = re.compile(r"\bray::.{1,300}?\(pid=(\d{1,7}), ip=([\d.a-fA-F:]{2,45})")
# What goes on after the message of some exceptions, in lines of its own.
_MORE = re.compile(
    r"^(?:CUDA kernel errors might|For debugging consider|Compile with `?TORCH_USE_CUDA|"
    r"Device-side assertion|Exception raised from |frame #\d+: |C\+\+ CapturedTraceback|"
    r"nccl\w+Error:|ncclInvalid\w+:|"
    r"Last error:|Parameters which did not|Parameter indices which|\s+In addition, you can set|"
    r"\[rank\d+\]|The above operation failed|See http|Search for )"
)
_ENDINGS = (
    "Error", "Exception", "Interrupt", "Exit", "Warning", "Timeout", "Timedout", "Failure", "Fault",
    "Abort", "Aborted", "Iteration", "Stop", "Empty", "Full", "Again", "NoSuchKey", "Group",
)  # fmt: skip
_NO_CLASSES = frozenset(("py", "sh", "cpp", "cc", "log", "yaml", "json", "txt"))


class _State(Enum):
    FRAMES = auto()
    MESSAGE = auto()
    # It is over; a chain may go on after it.
    ENDED = auto()
    CHAINED = auto()


@dataclass(slots=True)
class Trace:
    """A traceback as it is read; frames outermost first, as printed.

    Attributes:
        row: The line where it begins, from 1.
        line: That line, for whose it is and when it was.
        last_row: The line of the exception itself.
        type: The class of the exception.
        message: Its text.
        frames: The calls.
        thread: The thread, when it is not the main one.
        spawned: The process of torch.multiprocessing it is of, -1 for others.
        origins: What was printed before it in a chain, or the members of a group.
        is_told: Whether its own text says whose it is, rather than what stands before its lines.
    """

    row: int
    line: LogLine
    last_row: int = 0
    type: str = ""
    message: list[str] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    thread: str = ""
    spawned: int = -1
    origins: list[Trace] = field(default_factory=list)
    is_ignored: bool = False
    is_told: bool = False


@dataclass(slots=True)
class _Reading:
    """The tracebacks of one writer that are being read.

    ``seen`` is the number of the last line that belongs to it.
    """

    trace: Trace
    seen: int
    state: _State = _State.FRAMES
    in_original: bool = False
    in_box: bool = False
    in_group: bool = False
    in_table: bool = False


class TraceReader:
    """Follows the tracebacks of all writers of one log."""

    def __init__(self) -> None:
        self._open: dict[str, _Reading] = {}
        self._spawned = -1
        self._heads: dict[str, tuple[int, str]] = {}
        self._lines = 0
        # The rank of which a table of torchelastic tells, by the writer of the table.
        self._told: dict[str, int] = {}
        # Whether the last line belongs to a traceback.
        self.took = False
        self._above: LogLine | None = None

    @property
    def is_open(self) -> bool:
        """Whether the next lines may belong to a traceback."""
        return bool(self._open)

    def read(self, line: LogLine, row: int, before: Iterable[LogLine] = ()) -> Iterator[Trace]:
        """Take a line, with those before it that nobody took, nearest first; yield what it ends."""
        text = line.text[:_MAX_LINE]
        self._lines += 1
        last, self._above = self._above, line
        if match := _SPAWNED.match(text):
            self._spawned = int(match[1][:9])
        elif match := HEAD.match(text):
            self._heads[line.owner] = (row, match[1] or _IGNORED)
        elif match := _TABLE_RANK.match(text):
            self._told[line.owner] = int(match[1])
        reading = self._open.get(line.owner) or self._adopt(line, text)
        if reading is not None:
            yield from self._go_on(reading, line, text, row)
        elif _START.search(text):
            self._begin(_sign(line, next(iter(before), last)), text, row)
        reading = self._open.get(line.owner)
        self.took = reading is not None and reading.seen == self._lines
        if self._open and self._lines % _SWEEP == 0:
            yield from self._sweep()

    def finish(self) -> Iterator[Trace]:
        """Yield the tracebacks that the log ends in."""
        for owner in list(self._open):
            yield from self._close(owner)

    def _adopt(self, line: LogLine, text: str) -> _Reading | None:
        """Take a frame without a prefix for the traceback whose head, just above it, has one.

        A logger that writes a traceback as part of a message puts its prefix before the first line.
        """
        if line.owner or not FRAME.match(text):
            return None
        for owner, one in self._open.items():
            if one.seen == self._lines - 1 and not one.trace.frames and not one.in_table:
                one.trace.is_told = True
                self._open[""] = self._open.pop(owner)
                return one
        return None

    def _sweep(self) -> Iterator[Trace]:
        for owner, one in list(self._open.items()):
            limit = MAX_STRANGERS if one.state is _State.FRAMES else MAX_STRANGERS_BEHIND
            if self._lines - one.seen > limit:
                yield from self._close(owner)

    def _begin(self, line: LogLine, text: str, row: int, old: Trace | None = None) -> None:
        if len(self._open) >= _MAX_OPEN:
            return
        in_table = _IN_TABLE.match(text) is not None
        trace = Trace(row, line, spawned=self._spawned)
        # Who logged the exception has signed it, and its own lines have no prefix.
        trace.is_told = not line.owner and (line.rank, line.task) != (UNKNOWN_RANK, UNKNOWN_RANK)
        if in_table and line.owner in self._told:
            trace.line, trace.is_told = replace(line, rank=self._told[line.owner]), True
        if found := _OF_RANK.search(text):
            trace.line, trace.is_told = replace(line, rank=min(int(found[1]), MAX_RANK)), True
        head, thread = self._heads.pop(line.owner, (-1, ""))
        # Only the lines of others may come between them.
        if head == row - 1 or (line.owner and 0 < head >= row - _MAX_BETWEEN):
            trace.is_ignored = thread == _IGNORED
            trace.thread = "" if trace.is_ignored else thread
        if old is not None:
            trace.origins = [*old.origins, old][-MAX_ORIGINS:]
            old.origins = []
            trace.row, trace.line, trace.thread = old.row, old.line, old.thread
        self._open[line.owner] = _Reading(
            trace,
            self._lines,
            in_box="╭" in text or text.lstrip().startswith("│"),
            in_group=_GROUP_HEAD.match(text) is not None,
            in_table=in_table,
        )

    def _close(self, owner: str) -> Iterator[Trace]:
        trace = self._open.pop(owner).trace
        trace.origins = [one for one in trace.origins if one.type]
        if trace.type:
            yield trace

    def _go_on(self, reading: _Reading, line: LogLine, text: str, row: int) -> Iterator[Trace]:
        if reading.in_table:
            if _TABLE_END.match(text):
                yield from self._close(line.owner)
                return
            text = text.removeprefix("  ")
        if reading.in_group and _take_group_line(reading, text, row):
            reading.seen = self._lines
        elif reading.state is _State.FRAMES:
            yield from self._read_frames(reading, line, text, row)
        elif reading.state is _State.MESSAGE and _continues(reading, line, text):
            reading.seen = self._lines
            reading.trace.message.append(text)
            _note_original(reading, text, row)
        else:
            yield from self._read_end(reading, line, text, row)

    def _read_frames(
        self, reading: _Reading, line: LogLine, text: str, row: int
    ) -> Iterator[Trace]:
        trace = reading.trace
        if _START.search(text):
            # The one before was cut off.
            yield from self._close(line.owner)
            self._begin(line, text, row)
        elif _take_frame(reading, text):
            reading.seen = self._lines
        elif match := _RAY_CALL.search(text):
            trace.line = replace(line, pid=int(match[1]), node=match[2])
            trace.is_told, reading.seen = True, self._lines
        elif raised := find_raised(text):
            trace.type, first = raised
            trace.message.append(first)
            trace.last_row = row
            reading.state, reading.seen = _State.MESSAGE, self._lines

    def _read_end(self, reading: _Reading, line: LogLine, text: str, row: int) -> Iterator[Trace]:
        """Take a line after the message: a blank, a chain, another traceback, or none of them."""
        if _CHAIN.match(text):
            reading.state, reading.seen = _State.CHAINED, self._lines
        elif _START.search(text):
            old = reading.trace if reading.state is _State.CHAINED else None
            if old is None:
                yield from self._close(line.owner)
            self._begin(line, text, row, old)
        elif not text.strip():
            if reading.state is _State.MESSAGE:
                reading.state = _State.ENDED
        elif reading.state is not _State.CHAINED:
            yield from self._close(line.owner)


def _sign(line: LogLine, above: LogLine | None) -> LogLine:
    """Sign a traceback without a prefix by the record above it, of a logger that calls it an error.

    Loggers write a record and its traceback at once, so that nobody else comes between them.
    """
    if line.owner or above is None or not (above.is_error and above.owner):
        return line
    if line.rank != UNKNOWN_RANK:
        return line
    return replace(line, rank=above.rank, task=above.task, node=line.node or above.node)


def _take_group_line(reading: _Reading, text: str, row: int) -> bool:
    """Take a line of an exception group: that of the group, or of one of its members."""
    match = _GROUP_LINE.match(text)
    if match is None:
        reading.in_group = False
        if reading.trace.type:
            reading.state = _State.ENDED
        return False
    trace = reading.trace
    if match["split"]:
        trace.origins.append(Trace(row, trace.line))
        del trace.origins[:-MAX_ORIGINS]
        return True
    one = trace.origins[-1] if trace.origins else trace
    inner = match["text"] or ""
    if frame := FRAME.match(inner):
        add_frame(one, frame[3], frame[1], frame[2])
    elif not one.type and (raised := find_raised(inner)):
        one.type, one.message, one.last_row = raised[0], [raised[1]], row
    return True


def add_frame(trace: Trace, function: str | None, file: str, line: str) -> None:
    """Add a call to a traceback; of too many, those in the middle go."""
    if len(trace.frames) >= MAX_FRAMES:
        # A recursion without end: the innermost calls are its last ones.
        del trace.frames[MAX_FRAMES // 2]
    trace.frames.append(Frame(function or "<module>", file, int(line[:9])))


def _take_frame(reading: _Reading, text: str) -> bool:
    trace = reading.trace
    if match := FRAME.match(text):
        add_frame(trace, match[3], match[1], match[2])
        return True
    if reading.in_box and (box := _BOX.match(text)):
        if match := _RICH_FRAME.match(box[1].rstrip().rstrip(_EDGES)):
            add_frame(trace, match[3], match[1], match[2])
        return True
    return False


def find_raised(text: str) -> tuple[str, str] | None:
    """Find the class and the message in a line that looks like that of an exception."""
    match = _RAISED.match(text)
    if match is None or not is_class(match[1]):
        return None
    return match[1], (match[2] or "").rstrip()


def is_class(name: str) -> bool:
    """Whether a name looks like that of an exception, rather than the first word of a line."""
    last = name.rpartition(".")[2]
    if last in _NO_CLASSES or last.isupper():
        return False
    if last.endswith(_ENDINGS) or (last == "error" and "." in name):
        return True
    # `socket.timeout`, `botocore.errorfactory.NoSuchKey`, `MyProblem`
    return "." in name or bool(re.match(r"[A-Z][a-z]\w*[A-Z]", last))


def _continues(reading: _Reading, line: LogLine, text: str) -> bool:
    """Whether a line goes on with the message of the exception before it."""
    trace = reading.trace
    if len(trace.message) >= MAX_MESSAGE_LINES or _CHAIN.match(text):
        return False
    if _ORIGINAL.match(text) or reading.in_original:
        return bool(text.strip())
    if _START.search(text):
        return False
    if _MORE.match(text):
        return True
    # torch's own hook gives a prefix to nothing but the traceback.
    return line.is_hooked and bool(text.strip())


def _note_original(reading: _Reading, text: str, row: int) -> None:
    """Read the traceback of a data-loader worker, which is in the message of the exception."""
    trace = reading.trace
    if _ORIGINAL.match(text):
        reading.in_original = True
    elif reading.in_original:
        if match := FRAME.match(text):
            add_frame(trace, match[3], match[1], match[2])
        elif raised := find_raised(text):
            trace.type = raised[0]
            trace.message, trace.last_row = [raised[1]], row
            reading.in_original = False
