"""Stacks that somebody says are of the process spoken of above: `py-spy on the same pid`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from whystuck.evidence.logs.lines import UNKNOWN_RANK, LogEvent
from whystuck.parse.logs.blocks.stacks.seen import StackSeen
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.join import LogIndex
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.owners.known_logs import KnownLog

_NAME = "table.same_process"
_MOST_NOTES = 64
_MAX_WIDTH = 200
_HINT = re.compile(rb"\b(?:same|that|this) (?:pid|process|rank|worker)\b", re.IGNORECASE)
_SAME = re.compile(
    r"\bsame (?:pid|process|rank|worker)\b(?! groups?\b| as\b)"
    r"|\b(?:of|on|for|from|in) (?:that|this) (?:pid|process|rank|worker)\b(?! groups?\b)",
    re.IGNORECASE,
)
_TOOL = re.compile(
    r"\b(?:py-?spy|pystack|gdb|faulthandler|stacks?|dump(?:ed)?|(?:back)?trace)\b", re.IGNORECASE
)
# Whose it is may be told in numbers, and what is said of all is not said of one.
_OTHERS = re.compile(
    r"\b(?:rank|pid|process)[ _=:#]{0,2}\d|\b(?:all|both|each|every|not|other|another)\b|[?]"
)
# Between the words and the stack: a fence, the command, versions.
_MOST_BETWEEN = 6


def find_same_process(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find the lines that say whose the stacks below them are, by what was said before.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HINT.search(data) is None:
        return
    found = 0
    for at, line in enumerate(data.decode("utf-8", errors="replace").split("\n")):
        text = line[:_MAX_WIDTH]
        if _SAME.search(text) and _TOOL.search(text) and not _OTHERS.search(text):
            found += 1
            if found <= _MOST_NOTES:
                yield TabledSeen(_NAME, row + at, LogLine(text.strip()), {})


def list_notes(log: KnownLog, events: Iterable[LogEvent]) -> list[int]:
    """Return the rows of such lines in a log that shows stacks."""
    if not log.source.part.stacks:
        return []
    artifact = log.source.artifact
    return [one.row for one in events if one.signature == _NAME and one.artifact == artifact]


def find_rank_above(index: LogIndex, log: KnownLog, seen: StackSeen, notes: Iterable[int]) -> int:
    """Return the rank of the last exception above such a line, where a stack stands below it.

    It is the rank of the exception alone: who writes other lines is not spoken of.
    """
    note = max((row for row in notes if row < seen.row), default=0)
    if not note or seen.row - note > _MOST_BETWEEN:
        return UNKNOWN_RANK
    if any(note < one.row < seen.row for one in log.source.part.stacks):
        return UNKNOWN_RANK  # the words are about that one
    raised = [
        index.find_rank(log, trace.line) for trace in log.source.part.traces if trace.row < note
    ]
    return raised[-1] if raised else UNKNOWN_RANK
