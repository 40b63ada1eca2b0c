"""Tables of the counters of cgroups: a row for each pod, host or rank."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from whystuck.parse.logs.blocks.tables import cells
from whystuck.parse.logs.blocks.tables.column_names import read_name
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

COUNTER_MARKS = (b"nr_throttled",)
_NAMES = {"nr_periods": "periods", "nr_throttled": "throttled"}


# `train-0: nr_periods 30120 nr_throttled 22`
_BOTH = re.compile(
    r"\bnr_periods[ =:]{1,3}(\d{1,15})\b.{0,60}?\bnr_throttled[ =:]{1,3}(\d{1,15})\b"
)
_PLACE = re.compile(r"\s{0,8}(?:pods?/)?([A-Za-z](?=[\w.]{0,40}[\d-])[\w.-]{1,62})\b")
_MOST_APART = 6


class CounterReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._way: Callable[[str], list[str]] | None = None
        self._columns: list[str] = []
        self._begin = self._strangers = 0
        self._last_row = -_MOST_APART

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return self._way is not None

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the counters that it tells."""
        if is_mark and (match := _BOTH.search(line.text)):
            yield self._make_line(line, row, match)
            return
        if is_mark and self._begins(line.text, row):
            return
        if self._way is None or cells.is_drawn(line.text):
            return
        told = dict(zip(self._columns, cells.split_cells(line.text, self._way), strict=False))
        groups = {name: told.get(name, "").replace(",", "") for name in _NAMES.values()}
        if not all(value.isdecimal() for value in groups.values()):
            self._strangers += 1
            if self._strangers > MAX_STRANGERS:
                self._way = None
            return
        self._strangers = 0
        groups |= {"table": str(self._begin), "place": told.get("host", "")}
        if (rank := cells.read_number(told.get("rank", ""))) >= 0:
            groups["own"] = str(rank)
        yield TabledSeen("table.throttle", row, line, groups)

    def _make_line(self, line: LogLine, row: int, match: re.Match[str]) -> TabledSeen:
        """Make the counters of a line that has both, and the place before them."""
        if row - self._last_row > _MOST_APART:
            self._begin = row
        self._last_row = row
        named = _PLACE.match(line.text)
        groups = {"periods": match[1], "throttled": match[2], "table": str(self._begin)}
        groups["place"] = line.node or (named[1] if named else "")
        if line.rank >= 0:
            groups["own"] = str(line.rank)
        return TabledSeen("table.throttle", row, line, groups)

    def _begins(self, text: str, row: int) -> bool:
        if any(name not in text for name in _NAMES):
            return False
        for way in cells.WAYS:
            columns = [_name(cell) for cell in cells.split_cells(text, way)]
            if {*_NAMES.values()} <= {*columns} and {"host", "rank"} & {*columns}:
                self._way, self._columns, self._begin, self._strangers = way, columns, row, 0
                return True
        return False


def _name(cell: str) -> str:
    if cell in _NAMES:
        return _NAMES[cell]
    return "rank" if cells.read_head(cell) == "rank" else read_name(cell).kind
