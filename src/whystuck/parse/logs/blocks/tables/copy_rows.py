"""Copies as `nsys analyze` lists them, one a row: when, how long, from which memory to which."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables import cells
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

COPY_MARKS = (b"Src Kind",)
_MOST_ROWS = 200
_KIND = r"[A-Z][A-Za-z]{2,20}"
# What stands behind may be left out of a row, so that only these columns are told by their place.
_TABLE = re.compile(
    rf"^\s{{0,40}}(?P<ns>[\d,]{{1,20}})\s{{1,24}}(?P<start>[\d,]{{1,24}})\s{{1,24}}"
    rf"(?P<source>{_KIND})\s{{1,24}}(?P<target>{_KIND})\s{{1,24}}(?P<size>[\d,]{{1,12}}\.\d{{1,6}})"
    r"\s{1,24}(?P<pid>\d{1,9})\b"
)
_CSV = re.compile(
    rf"^(?P<ns>\d{{1,18}}),(?P<start>\d{{1,20}}),(?P<source>{_KIND}),(?P<target>{_KIND}),"
    r"(?P<size>\d{1,12}(?:\.\d{1,6})?),(?P<pid>\d{1,9})\b"
)


class CopyReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._is_open = False
        self._rows = self._strangers = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return self._is_open

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the copy of its row."""
        text = line.text
        if is_mark and "Duration (ns)" in text and "Dst Kind" in text:
            self._is_open, self._rows, self._strangers = True, 0, 0
            return
        if not self._is_open or cells.is_drawn(text):
            return
        match = _TABLE.match(text) or _CSV.match(text)
        if match is None:
            self._strangers += bool(text.strip())
            self._is_open = self._strangers <= MAX_STRANGERS
            return
        self._rows += 1
        self._is_open = self._rows < _MOST_ROWS
        groups = {name: told.replace(",", "") for name, told in match.groupdict().items()}
        groups |= {name: groups[name].lower() for name in ("source", "target")}
        yield TabledSeen("table.copy", row, line, groups)
