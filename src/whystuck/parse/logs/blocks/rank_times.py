"""Times of ranks in tables.

Megatron prints the times of each rank below the name of each phase (`--timing-log-option all`);
other programs print a line for each rank below the names of the phases, or one for each host with
all its ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines import LogLine

_UNITS = (b"_ms", b"(ms", b" (ms", b"[ms", b" [ms", b"_s ", b"(s)", b" (s)")
_WORDS = (b"fwd", b"forward", b"compute")
# Names of columns that have no unit.
_BARE = (b"data_wait", b"allreduce_wait", b"comm_wait", b"fwd_time", b"bwd_time")
TIME_MARKS = (
    b"times across ranks (ms)",
    *(word + unit for word in _WORDS for unit in _UNITS),
    *_BARE,
    b"per rank",
)

_PHASE = re.compile(r"^\s{0,8}([A-Za-z][\w/-]{1,60}):\s*$")
_RANK_ROW = re.compile(r"^\s{0,12}rank\s{1,6}(\d{1,7}):\s{1,8}(\d{1,12}(?:\.\d{1,6})?)\s*$")
_NUMBER = re.compile(r"^\s*(\d{1,12}(?:\.\d{1,6})?)\s*$")
# `rank  fwd_ms  bwd_ms`, also with bars between the columns
_HEAD = re.compile(r"^[\s|]{0,12}rank[\s|,]{1,20}(\S.{0,300})$", re.IGNORECASE)
_CELLS = re.compile(r"[\s|,]+")
# The unit of a column; in brackets, it may stand behind a blank.
_UNIT = re.compile(r"[_(\[](ms|s)[)\]]?$")
_APART = re.compile(r"(?<!\s)\s+(?=[(\[](?:ms|s)[)\]])")
# `compute ms per rank`, above lines such as `node k03  r16=806  r17=800`
_PER_RANK = re.compile(
    r"\b(compute|fwd|forward|bwd|backward)\b.{0,40}?\b(ms|s|sec|seconds)\b.{0,20}?\bper rank\b",
    re.IGNORECASE,
)
_CELL = re.compile(r"(?<!\w)(?:rank|r)(\d{1,7}) ?[=:] ?(\d{1,9}(?:\.\d{1,6})?)(?![\w.])")
_HOST = re.compile(r"\b(?:node|host)[ =:]{1,2}([A-Za-z][\w.-]{0,62})")
_LEAST_CELLS = 2
_MOST_COLUMNS = 24
_MS = 1000.0
# Columns that are words, and no times.
_NAMES = {"host", "hostname", "node", "nodename", "gpu_name", "pod"}
# Times of a step without a unit are seconds where none is larger.
_MOST_S = 50.0


class TimeReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._begin = 0
        self._phase = ""
        # Names of the columns and how many ms their unit is, where a row has several.
        self._columns: list[tuple[str, float]] = []
        # Whether they have no unit, and no row has shown yet what it is.
        self._is_bare = False
        self._scale = 0.0  # of lines that have times of several ranks
        self._strangers = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._begin)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the times that it tells."""
        if is_mark and (columns := _find_head(line.text)) is not None:
            self._begin, self._phase, self._columns, self._strangers = row, "", columns, 0
            self._is_bare = not any(unit in line.text.encode() for unit in _UNITS)
            self._scale = 0.0
        elif is_mark and (head := _PER_RANK.search(line.text)):
            self._begin, self._phase, self._columns, self._strangers = row, head[1], [], 0
            self._scale = 1.0 if head[2] == "ms" else _MS
        elif self._scale and self._begin:
            yield from self._read_cells(line, row)
        elif self._columns:
            yield from self._read_columns(line, row)
        elif self._begin:
            yield from self._read_time(line, row)

    def _read_columns(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        cells = _CELLS.split(line.text.strip(" \t|"))
        # A number before a colon or a bar is taken for a prefix.
        told = next((one for one in (line.rank, line.task) if one != UNKNOWN_RANK), -1)
        if len(cells) == len(self._columns) and told >= 0:
            cells = [str(told), *cells]
        kinds = [True, *(unit != 0.0 for _, unit in self._columns)]
        if len(cells) != len(kinds) or not all(
            _NUMBER.match(cell) for cell, is_number in zip(cells, kinds, strict=True) if is_number
        ):
            if any(char.isalnum() for char in line.text):
                self._end_soon()
            return
        self._strangers = 0
        if not cells[0].isdecimal() or int(cells[0]) > MAX_RANK:
            return
        if self._is_bare:
            self._choose_unit(cells[1:])
        for (phase, unit), value in zip(self._columns, cells[1:], strict=True):
            if unit:
                yield self._make(line, row, phase, int(cells[0]), str(float(value) * unit))

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

    def _choose_unit(self, cells: Sequence[str]) -> None:
        """Take the times of a table without units for seconds or ms, by its first row."""
        self._is_bare = False
        told = zip(self._columns, cells, strict=True)
        most = max((float(cell) for (_, unit), cell in told if unit), default=0.0)
        scale = _MS if most < _MOST_S else 1.0
        self._columns = [(name, unit and scale) for name, unit in self._columns]

    def _read_time(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        told, text = (line.rank, line.task), line.text
        if match := _RANK_ROW.match(text):
            rank, value = int(match[1]), match[2]
        elif match := _NUMBER.match(text):
            # `rank 11: ` is taken for a prefix where the blanks before it were cut off.
            rank, value = next((one for one in told if one != UNKNOWN_RANK), -1), match[1]
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
            self._begin, self._columns = 0, []


def _find_head(text: str) -> list[tuple[str, float]] | None:
    """Return the columns of a table that begins; none where a phase stands above its ranks."""
    if "times across ranks (ms)" in text:
        return []
    match = _HEAD.match(_APART.sub("", text))
    if match is None:
        return None
    columns = []
    for name in _CELLS.split(match[1].strip(" \t|"))[:_MOST_COLUMNS]:
        unit = _UNIT.search(name)
        scale = 0.0 if name.lower() in _NAMES else _find_scale(unit)
        columns.append((name[: unit.start()] if unit else name, scale))
    return columns


def _find_scale(unit: re.Match[str] | None) -> float:
    return _MS if unit is not None and unit[1] == "s" else 1.0
