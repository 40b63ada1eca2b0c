"""Counts of calls that people print of each rank: `all_reduce calls: rank0 412 rank1 411`.

A heading, or the beginning of the line, says which calls are counted. The numbers stand behind the
names of ranks, several in a line or one in each, or in the order of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines import LogLine

COUNT_MARKS = (
    b"reduce calls",
    b"gather calls",
    b"barrier calls",
    b"broadcast calls",
    b"collective calls",
    b"calls made",
    b"calls issued",
    b"calls so far",
    b"calls per rank",
    b"calls by rank",
    b"calls of each rank",
    b"reduce count",
    b"gather count",
    b"barrier count",
    b"collective count",
    b"collectives issued",
    b"collectives made",
    b"collectives called",
    b"collectives per rank",
    b"issued collectives",
    b"number of all",
    b"number of collective",
    b"number of barrier",
    b"reduces per rank",
    b"gathers per rank",
    b"barriers per rank",
)
_OP = (
    r"(?:all[_-]?reduc|all[_-]?gather|reduce[_-]?scatter|all[_-]?to[_-]?all|broadcast|barrier"
    r"|collective)\w{0,16}"
)
_COUNT = (
    r"(?:calls?|counts?|counters?|called|issued|made|launched|entered|number|times|seq|per rank"
    r"|by rank)"
)
_HEAD = re.compile(
    rf"\b(?P<op>{_OP})\b.{{0,40}}?\b{_COUNT}\b|\b{_COUNT}\b.{{0,30}}?\b(?P<op2>{_OP})\b",
    re.IGNORECASE,
)
_CELL = re.compile(
    r"(?<![\w.])(?:rank[ _:#]?|r)(\d{1,7})\]?[ :=]{1,4}(\d{1,12})"
    r"(?![\w.%/]|\s?(?:ms|s|MB|GB|MiB)\b)",
    re.IGNORECASE,
)
_LEAST_CELLS = 2
# In the order of ranks.
_LIST = re.compile(r"[:=]\s{0,4}[\[(]?((?:\d{1,12}(?:, ?| {1,4})){2,512}\d{1,12})[\])]?\s*$")
_IN_ORDER = re.compile(r"\b(?:per|by|each|all|of the) ranks?\b|\branks? \d", re.IGNORECASE)
# `rank 3: ` before a number is taken for a prefix.
_BARE = re.compile(r"^\s{0,8}[=:|]?\s{0,4}(\d{1,12})(?: (?:calls?|times))?\s*$")
# That it was looked at because nothing moved.
_STUCK = re.compile(
    r"\b(?:stall|hang|hung|stuck|freez|froze|deadlock|time ?out|timed out)\w{0,4}\b", re.IGNORECASE
)


class CountReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._begin = 0
        self._strangers = 0
        self._groups: dict[str, str] = {}

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._begin)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the count of each rank in it."""
        head = _HEAD.search(line.text) if is_mark else None
        if head is not None:
            self._begin, self._strangers = row, 0
            is_stuck = "1" if _STUCK.search(line.text) else ""
            op = (head["op"] or head["op2"]).lower()
            self._groups = {"table": str(row), "op": op, "stuck": is_stuck}
        if not self._begin:
            return
        told = _read_counts(line, is_head=head is not None)
        for rank, count in told:
            if rank <= MAX_RANK:
                groups = self._groups | {"own": str(rank), "count": str(count)}
                yield TabledSeen("table.calls", row, line, groups)
        if told:
            self._strangers = 0
        elif head is None:
            self._strangers += 1
            if self._strangers > MAX_STRANGERS:
                self._begin = 0


def _read_counts(line: LogLine, *, is_head: bool) -> list[tuple[int, int]]:
    """Return the ranks of a line and their counts."""
    cells = [(int(rank), int(count)) for rank, count in _CELL.findall(line.text)]
    if cells and (len(cells) >= _LEAST_CELLS or not is_head):
        return cells
    if (found := _LIST.search(line.text)) and (not is_head or _IN_ORDER.search(line.text)):
        return list(enumerate(map(int, re.findall(r"\d+", found[1]))))
    rank = next((one for one in (line.rank, line.task) if one != UNKNOWN_RANK), -1)
    bare = _BARE.match(line.text) if rank >= 0 and not is_head else None
    return [(rank, int(bare[1]))] if bare else []
