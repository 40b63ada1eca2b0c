"""How much each rank had to do and how long that took, with all ranks of a step in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.column_names import find_scale
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

WORK_MARKS = (b" r1 ", b" r1:", b" r1=", b"rank1=", b"rank 1=", b" R1 ", b" R1:", b" R1=")
# `r0 8120/402`, `rank1=4096 tok / 211.0 ms`, `r2: 66@0.83s`
_CELL = re.compile(
    r"(?<![\w.])(?:rank ?|r)(\d{1,7})(?: ?[:=] ?|\s{1,3})(\d{1,12})(?: ?[A-Za-z]{1,8})?"
    r" ?[/@|] ?(\d{1,9}(?:\.\d{1,6})?) ?(ms|s)?(?![\w.])",
    re.IGNORECASE,
)
_LEAST_CELLS = 3
# Lines of one table stand so near to each other.
_MOST_APART = 8


class WorkReader:
    """Reads single lines."""

    is_open = False

    def __init__(self) -> None:
        self._begin, self._last = 0, -_MOST_APART

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the work of each rank."""
        cells = _CELL.findall(line.text) if is_mark else []
        if len({rank for rank, *_ in cells}) < _LEAST_CELLS:
            return
        if row - self._last > _MOST_APART:
            self._begin = row
        self._last = row
        for rank, work, took, unit in cells:
            if int(rank) <= MAX_RANK:
                ms = float(took) * (find_scale(unit) or 1.0)
                told = {"table": str(self._begin), "own": rank, "work": work, "took": str(ms)}
                told |= {} if unit else {"bare": took}
                yield TabledSeen("table.work", row, line, told | {"phase": ""})
