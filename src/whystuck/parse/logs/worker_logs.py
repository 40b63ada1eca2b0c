"""Logs of workers and launchers: Python tracebacks, and the failure summary of torchrun."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from whystuck.evidence.live import ExitRecord, PythonException
from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ops.collectives import Frame

# A capture stamp (ISO time or seconds), then torchrun's `[default0]:` and torch's `[rank0]:`.
_STAMP = re.compile(
    r"^(?:\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?|\d+\.\d+)[ \t]\s?(?:(?:out|err) )?"
)
_PREFIX = re.compile(r"^\[(rank|[A-Za-z_]*?)(\d+)\]:? ?")
# A pattern is given no more of a line.
_MAX_LINE = 8192
_SPAWNED = re.compile(r"^-- Process (\d+) terminated with the following error")
_START = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$')
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
_SUMMARY_RANK = re.compile(r"^\s*rank\s*: (\d+) \(local_rank: \d+\)")
_SUMMARY_EXIT = re.compile(r"^\s*exitcode\s*: (-?\d+) \(pid: (\d+)\)")
_ORIGINAL = "Original Traceback (most recent call last):"
MAX_MESSAGE_LINES = 40


@dataclass
class _Open:
    """A traceback that is being read; frames are kept outermost first, as printed."""

    row: int
    frames: list[Frame] = field(default_factory=list)
    type: str = ""
    message: list[str] = field(default_factory=list)


def parse_log(
    text: str, *, rank: int = UNKNOWN_RANK, artifact: str = ""
) -> tuple[list[PythonException], list[ExitRecord]]:
    """Find the uncaught exceptions and the launcher's failure summary in a log.

    Args:
        text: The log.
        rank: The rank that wrote it, when the log is of one rank.
        artifact: The path to cite.

    Returns:
        The last exception of each rank that printed one, and the exits the launcher saw.
    """
    last_by_rank: dict[int, PythonException] = {}
    for exception in _find_exceptions(text, rank, artifact):
        last_by_rank[exception.rank] = exception
    return list(last_by_rank.values()), list(_find_exits(text, artifact))


def _strip_prefix(line: str, rank: int) -> tuple[int, str]:
    line = _STAMP.sub("", line, count=1)
    while match := _PREFIX.match(line):
        # The number in torchrun's own prefix is a local rank; it is better than none.
        if match[1] == "rank" or rank == UNKNOWN_RANK:
            rank = int(match[2])
        line = line[match.end() :]
    return rank, line


def _find_exceptions(text: str, rank: int, artifact: str) -> Iterator[PythonException]:
    open_by_rank: dict[int, _Open] = {}
    spawned = UNKNOWN_RANK
    for row, raw in enumerate(text.splitlines()):
        owner, line = _strip_prefix(raw[:_MAX_LINE], rank)
        if match := _SPAWNED.match(line):
            # torch.multiprocessing.spawn gives its processes their ranks
            spawned = int(match[1])
        owner = spawned if owner == UNKNOWN_RANK else owner
        trace = open_by_rank.get(owner)
        if line.startswith(_START):
            if trace is not None and trace.type:
                yield _close(trace, owner, artifact)
            open_by_rank[owner] = _Open(row)
        elif trace is not None and not _take_line(trace, line):
            yield _close(trace, owner, artifact)
            del open_by_rank[owner]
    for owner, trace in open_by_rank.items():
        if trace.type:
            yield _close(trace, owner, artifact)


def _take_line(trace: _Open, line: str) -> bool:
    """Add a line to an open traceback; false when the line is not part of it."""
    match = _FRAME.match(line)
    if not trace.type:
        if match:
            trace.frames.append(Frame(match[3], match[1], int(match[2])))
        elif line and not line[0].isspace() and (raised := _RAISED.match(line)):
            trace.type = raised[1]
            trace.message.append(raised[2] or "")
        return True
    in_original = any(text.startswith(_ORIGINAL) for text in trace.message)
    if in_original and match:
        trace.frames.append(Frame(match[3], match[1], int(match[2])))
    elif not line.startswith(_ORIGINAL) and not (in_original and line):
        return False
    trace.message.append(line)
    return len(trace.message) < MAX_MESSAGE_LINES


def _close(trace: _Open, rank: int, artifact: str) -> PythonException:
    return PythonException(
        rank=rank,
        type=trace.type,
        message="\n".join(trace.message),
        frames=tuple(reversed(trace.frames)),
        source="log",
        artifact=artifact,
    )


def _find_exits(text: str, artifact: str) -> Iterator[ExitRecord]:
    rank = UNKNOWN_RANK
    for raw in text.splitlines():
        _, line = _strip_prefix(raw[:_MAX_LINE], UNKNOWN_RANK)
        if match := _SUMMARY_RANK.match(line):
            rank = int(match[1])
        elif rank != UNKNOWN_RANK and (match := _SUMMARY_EXIT.match(line)):
            code, pid = int(match[1]), int(match[2])
            yield ExitRecord(
                rank=rank,
                pid=pid,
                code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                source="launcher log",
                artifact=artifact,
            )
            rank = UNKNOWN_RANK
