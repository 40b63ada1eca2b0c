"""Bandwidths of pairs of hosts, as people list them of nccl-tests and of perftest: a row a pair."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

PAIR_MARKS = (b"_perf ", b"busbw", b"_bw ")
# Of times, the smaller ones are the good ones.
_TIME = re.compile(r"\d ?(?:[un]sec|[mun]?s)\b")
_HOST = r"(?=[A-Za-z\d.-]*\d)[A-Za-z][\w.-]{1,62}"
_ROW = re.compile(
    rf"^\s{{0,8}}(?P<one>{_HOST})\s{{0,4}}(?:,|<-{{1,2}}>|-{{1,2}}>|\+|/|:|\||\band\b|\bto\b|\s)"
    rf"\s{{0,4}}(?P<other>{_HOST})\s{{0,4}}[:=|,]?\s{{1,24}}"
    r"(?P<speed>\d{1,6}(?:\.\d{1,4})?)(?: ?G(?:i?B|b)/?p?s)?\b(?:\s{1,12}\D.{0,60})?$"
)
_MAX_STRANGERS = 3


class PairReader:
    """Follows one list at a time."""

    def __init__(self) -> None:
        self._begin = self._left = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the pair that it tells."""
        match = _ROW.match(line.text) if self._left else None
        if match is not None and not _TIME.search(line.text):
            self._left = _MAX_STRANGERS
            groups = {"table": str(self._begin), **match.groupdict()}
            yield TabledSeen("table.pair", row, line, groups)
        elif is_mark and any(mark.decode() in line.text for mark in PAIR_MARKS):
            self._begin, self._left = row, _MAX_STRANGERS
        elif self._left and line.text.strip():
            self._left -= 1
