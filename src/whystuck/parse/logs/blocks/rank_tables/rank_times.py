"""Times of ranks in lists.

Megatron prints the times of each rank below the name of each phase (`--timing-log-option all`);
other programs print a line for each host with all its ranks. Tables with columns are read by
`rank_tables`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

TIME_MARKS = (b"times across ranks (ms)", b"per rank")

_PHASE = re.compile(r"^\s{0,8}([A-Za-z][\w/-]{1,60}):\s*$")
_RANK_ROW = re.compile(r"^\s{0,12}rank\s{1,6}(\d{1,7}):\s{1,8}(\d{1,12}(?:\.\d{1,6})?)\s*$")
_NUMBER = re.compile(r"^\s*(\d{1,12}(?:\.\d{1,6})?)\s*$")
# `compute ms per rank`, `fwd+bwd per rank (ms, mean)`, above lines such as
# `node k03  r16=806  r17=800`, `r0 412  r1 409`
_PER_RANK = re.compile(
    r"\b(?P<phase>compute|fwd|forward|bwd|backward)\b.{0,40}?"
    r"(?:\b(?P<unit>ms|s|sec|seconds)\b.{0,20}?\bper rank\b"
    r"|\bper rank\b,? ?[(\[]?(?:in )?(?P<behind>ms|s|sec|seconds)\b)",
    re.IGNORECASE,
)
_CELL = re.compile(r"(?<!\w)(?:rank|r)(\d{1,7})(?: ?[=:] ?| {1,3})(\d{1,9}(?:\.\d{1,6})?)(?![\w.])")
_HOST = re.compile(r"\b(?:node|host)[ =:]{1,2}([A-Za-z][\w.-]{0,62})")
_LEAST_CELLS = 2
_MS = 1000.0


class TimeReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._begin = 0
        self._phase = ""
        self._scale = 0.0  # of lines that have times of several ranks
        self._strangers = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._begin)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the times that it tells."""
        if is_mark and "times across ranks (ms)" in line.text:
            self._begin, self._phase, self._strangers, self._scale = row, "", 0, 0.0
        elif is_mark and (head := _PER_RANK.search(line.text)):
            self._begin, self._phase, self._strangers = row, head["phase"], 0
            unit = head["unit"] or head["behind"]
            self._scale = 1.0 if unit.lower() == "ms" else _MS
        elif self._scale and self._begin:
            yield from self._read_cells(line, row)
        elif self._begin:
            yield from self._read_time(line, row)

    def _read_cells(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        cells = _CELL.findall(line.text)
        if len(cells) < _LEAST_CELLS:
            self._end_soon()
            return
        self._strangers = 0
        host = _HOST.search(line.text)
        for rank, value in cells:
            if int(rank) <= MAX_RANK:
                ms = str(float(value) * self._scale)
                one = self._make(line, row, self._phase, int(rank), ms)
                yield replace(one, groups=one.groups | {"host": host[1]}) if host else one

    def _read_time(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        text = line.text
        if match := _RANK_ROW.match(text):
            rank, value = int(match[1]), match[2]
        elif match := _NUMBER.match(text):
            # `rank 11: ` is taken for a prefix where the blanks before it were cut off.
            rank, value = line.writer, match[1]
        elif match := _PHASE.match(text):
            self._phase, self._strangers = match[1], 0
            return
        else:
            self._end_soon()
            return
        self._strangers = 0
        if self._phase and 0 <= rank <= MAX_RANK:
            yield self._make(line, row, self._phase, rank, value)

    def _make(self, line: LogLine, row: int, phase: str, rank: int, value: str) -> TabledSeen:
        groups = {"table": str(self._begin), "phase": phase, "own": str(rank), "ms": value}
        return TabledSeen("table.time", row, line, groups)

    def _end_soon(self) -> None:
        self._strangers += 1
        if self._strangers > MAX_STRANGERS:
            self._begin = 0
