"""Tables of what ranks tell, as people draw them: a row for each rank, or a column for each.

Cells may be times of phases, how much a rank had to do and how long that took, and sums over what
all ranks should have alike. What they are is told by the names of columns and rows, and by the
lines above the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks import cells
from whystuck.parse.logs.blocks.column_names import (
    Name,
    find_said_phase,
    find_said_scale,
    find_scale,
    read_name,
    tells_sums,
)
from whystuck.parse.logs.blocks.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines import LogLine

_UNITS = (b"_ms", b"(ms", b" (ms", b"[ms", b" [ms", b"_s ", b"(s)", b" (s)")
_WORDS = (b"fwd", b"forward", b"compute")
_BAR = b"\xe2\x94\x82"
_HEADS = (b"rank", b"Rank", b"RANK", b"rank_id", b"Rank ID", b"rank id")
# The second of several columns of ranks: of the first one, there are more lines.
_SECOND = (
    *(b"r1", b"R1", b"rank1", b"rank 1", b"rank_1", b"Rank1", b"Rank 1", b"RANK1"),
    *(b"gpu1", b"gpu 1", b"GPU1", b"GPU 1"),
)
RANK_MARKS = (
    # The head of a column of ranks.
    *(
        word + end
        for word in _HEADS
        for end in (b"  ", b" |", b"|", b"\t", b",", b";", b" " + _BAR)
    ),
    *(begin + word for word in _HEADS[:3] for begin in (b"| ", b",", _BAR + b" ")),
    *(b"rank " + name for name in (b"fwd", b"forward", b"data", b"host", b"step", b"node")),
    *(b"| gpu", b"| GPU", b"gpu  ", b"GPU  ", b"gpu |", b"GPU |", b"gpu,host", b"gpu\t"),
    *(name + end for name in _SECOND for end in (b"  ", b" |", b" " + _BAR)),
    *(begin + name for name in _SECOND for begin in (b"| ", _BAR + b" ")),
    *(b"," + name + b"," for name in _SECOND),
    *(b"\t" + name + end for name in _SECOND for end in (b"\t", b":", b" ")),
    *(b"|" + name + end for name in _SECOND for end in (b"|", b" ")),
    # Those of the second host.
    *(name + end for name in (b"r9", b"rank9", b"rank 9") for end in (b"  ", b" |")),
    *(b"| r9", b"| rank9", b"| rank 9", b",r9,", b",rank9,"),
    b"r0 r1 ",
    # Names of columns.
    *(word + unit for word in _WORDS for unit in _UNITS),
    *(b"data_wait", b"allreduce_wait", b"comm_wait", b"fwd_time", b"bwd_time"),
)
# So many lines above a table may say what is in it.
MOST_ABOVE = 6
_LEAST_RANKS = 3
_LEAST_COLUMNS = 2
_MOST_NAME = 60
# A shorter text of hexadecimal digits may be a word.
_LEAST_HASH = 6


@dataclass(frozen=True)
class _Column:
    """What the cells of a column hold, and of which rank; -1 where rows have ranks."""

    names: tuple[Name, ...]
    rank: int = -1


@dataclass
class _Table:
    """A table that has begun, in one of the ways in which its head may be split."""

    way: Callable[[str], list[str]]
    columns: list[_Column]
    # The column that names the rank of a row; -1 where columns are of ranks.
    rank_at: int
    is_device: bool
    host_at: int = -1
    scales: list[float] = field(default_factory=list)


Above = Callable[[], Sequence[str]]


class RankTableReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._tables: list[_Table] = []
        self._begin = self._strangers = 0
        self._scale, self._phase, self._has_sums = 0.0, "", False

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._tables)

    def read_row(
        self, line: LogLine, raw: str, row: int, above: Above, *, is_mark: bool
    ) -> Iterator[TabledSeen]:
        """Take a line; yield what its cells tell.

        Args:
            line: The line.
            raw: The same with what stands before it: the first cells look like a prefix.
            row: Its number.
            above: Returns the lines above it, the nearest first.
            is_mark: Whether it may be the head of a table.
        """
        texts = (line.text, raw) if raw != line.text else (raw,)
        if is_mark and any(self._begins(text, row, above) for text in texts):
            return
        if not self._tables or cells.is_drawn(raw):
            return
        if is_mark and self._takes_units(raw):
            return
        for table in self._tables:
            for text in texts:
                for one in _list_rows(text, table):
                    if (found := self._read_cells(line, row, table, one)) is not None:
                        self._tables, self._strangers = [table], 0
                        yield from found
                        return
        if any(self._takes_units(text) for text in texts):
            return
        self._strangers += 1
        if self._strangers > MAX_STRANGERS:
            self._tables = []

    def _begins(self, text: str, row: int, above: Above) -> bool:
        tables = [one for way in cells.WAYS if (one := _read_head(text, way)) is not None]
        if not tables:
            return False
        told = list(above())
        has_sums, phase = tells_sums(told), find_said_phase(told)
        tables = [one for one in tables if one.rank_at < 0 or _is_telling(one)]
        if tables:
            self._tables, self._begin, self._strangers = tables, row, 0
            self._scale, self._phase, self._has_sums = find_said_scale(told), phase, has_sums
        return bool(tables)

    def _takes_units(self, text: str) -> bool:
        """Take a row below the head that has the units of columns; tell whether it is one."""
        for table in self._tables:
            told = cells.split_cells(text, table.way)
            scales = [find_scale(cell) for cell in told]
            is_all = all(
                scale or not cell.strip("-() ") for cell, scale in zip(told, scales, strict=True)
            )
            if len(told) == len(table.columns) and is_all and any(scales):
                table.scales = scales
                return True
        return False

    def _read_cells(
        self, line: LogLine, row: int, table: _Table, told: list[str]
    ) -> list[TabledSeen] | None:
        """Return what a row tells, None where it is no row of the table."""
        if table.rank_at >= 0:
            return self._read_rank(line, row, table, told)
        return self._read_ranks(line, row, table, told)

    def _read_rank(
        self, line: LogLine, row: int, table: _Table, told: list[str]
    ) -> list[TabledSeen] | None:
        """Read a row that is of one rank."""
        rank = cells.read_number(told[table.rank_at])
        values = [
            (column, cell, scale)
            for at, (column, cell, scale) in enumerate(
                zip(table.columns, told, table.scales, strict=True)
            )
            if at not in (table.rank_at, table.host_at)
        ]
        if not 0 <= rank <= MAX_RANK or not any(cells.read_value(cell) for _, cell, _ in values):
            return None
        steps = [cell for column, cell, _ in values if column.names[0].kind == "step"]
        key = f"{self._begin}" + (f".{steps[0]}" if steps and steps[0].isdecimal() else "")
        base = {"table": f"{self._begin}", "own": str(rank)}
        if table.is_device:
            base["by"] = "device"
        if table.host_at >= 0 and told[table.host_at]:
            base["host"] = told[table.host_at]
        found = []
        parts: dict[str, str] = {}
        for column, cell, scale in values:
            for name, part in _pair(column, cell):
                parts |= self._name_part(name, part, scale, parts)
                if name.kind == "sum" and (value := _read_sum(part)):
                    groups = base | {"table": key, "what": "sum", "sum": value}
                    found.append(TabledSeen("table.value", row, line, groups))
                elif groups := self._make_time(name, part, scale):
                    found.append(TabledSeen("table.time", row, line, base | groups))
        if {"work", "took"} <= parts.keys():
            found.append(TabledSeen("table.work", row, line, base | parts))
        return found

    def _name_part(
        self, name: Name, part: str, scale: float, known: dict[str, str]
    ) -> dict[str, str]:
        """Return how much a rank had to do, or how long that took, as a cell tells."""
        value = cells.read_value(part)
        if value is None:
            return {}
        if name.kind == "work" and "work" not in known:
            return {"work": f"{value[0]:.0f}"}
        if name.kind == "time" and "took" not in known and _is_of_work(name.text):
            ms = name.scale or scale or find_scale(value[1]) or self._scale
            return {"took": str(value[0] * (ms or 1.0)), "phase": name.text or self._phase}
        return {}

    def _make_time(self, name: Name, part: str, scale: float) -> dict[str, str]:
        """Return the groups of the time in a cell, none where it is no time."""
        value = cells.read_value(part)
        is_time = name.kind == "time" or (name.kind == "step" and "." in part)
        if value is None or not is_time:
            return {}
        phase = name.text or self._phase
        ms = name.scale or scale or find_scale(value[1]) or self._scale
        told = {"ms": str(value[0] * ms)} if ms else {"bare": str(value[0])}
        return {"phase": phase, **told} if phase else {}

    def _read_ranks(
        self, line: LogLine, row: int, table: _Table, told: list[str]
    ) -> list[TabledSeen] | None:
        """Read a row that has a cell of each rank."""
        of_ranks = [
            (column, cell)
            for column, cell in zip(table.columns, told, strict=True)
            if column.rank >= 0
        ]
        if sum(_read_sum(cell.split("/")[0].strip()) != "" for _, cell in of_ranks) < _LEAST_RANKS:
            return None
        first = next(
            (
                cell
                for column, cell in zip(table.columns, told, strict=True)
                if column.rank < 0 and cell
            ),
            "",
        )
        is_step = first.rstrip(":").isdecimal() or not first
        head = Name(self._phase, "time" if self._phase else "") if is_step else read_name(first)
        is_sum = head.kind == "sum" or (self._has_sums and (is_step or not head.kind))
        found = []
        works: dict[int, dict[str, str]] = {}
        for column, cell in of_ranks:
            base = {"table": f"{self._begin}", "own": str(column.rank)}
            base |= {"by": "device"} if table.is_device else {}
            if is_sum:
                groups = base | {"table": str(row), "what": "sum", "sum": _read_sum(cell)}
                groups |= {"step": first.rstrip(":")} if is_step and first else {}
                found += [TabledSeen("table.value", row, line, groups)] if groups["sum"] else []
                continue
            known = works.setdefault(column.rank, {})
            for name, part in _pair(column, cell):
                mine = name if name.kind else head
                known |= self._name_part(mine, part, 0.0, known)
                if groups := self._make_time(mine, part, 0.0):
                    found.append(TabledSeen("table.time", row, line, base | groups))
            if {"work", "took"} <= known.keys():
                found.append(TabledSeen("table.work", row, line, base | works.pop(column.rank)))
        return found


def _read_head(text: str, way: Callable[[str], list[str]]) -> _Table | None:
    """Return the table whose head a line is when it is split in some way."""
    told = cells.split_cells(text, way)
    if len(told) < _LEAST_COLUMNS or max(map(len, told)) > _MOST_NAME:
        return None
    owners = [cells.read_owner(cell) for cell in told]
    named = [owner for owner in owners if owner is not None]
    if len({owner.rank for owner in named}) >= _LEAST_RANKS:
        return _head_ranks(told, way, owners)
    heads = [cells.read_head(cell) for cell in told]
    numbers = [int(cell) if cell.isdecimal() else -1 for cell in told[1:]]
    if heads[0] and len(numbers) >= _LEAST_RANKS and min(numbers) >= 0:
        # `rank | 0 | 1 | 2`
        is_row = all(later == earlier + 1 for earlier, later in pairwise(numbers))
        columns = [_Column(()), *(_Column((Name("", ""),), rank) for rank in numbers)]
        return _close(_Table(way, columns, -1, heads[0] == "device")) if is_row else None
    at = next(
        (at for kind in ("rank", "device") for at, one in enumerate(heads) if one == kind), -1
    )
    if at < 0 or heads.count(heads[at]) > 1 or any(cells.read_value(cell) for cell in told):
        return None
    columns = [_Column(_read_names(cell)) for cell in told]
    host = next((i for i, one in enumerate(columns) if one.names[0].kind == "host"), -1)
    return _close(_Table(way, columns, at, heads[at] == "device", host))


def _head_ranks(
    told: list[str], way: Callable[[str], list[str]], owners: Sequence[cells.Owner | None]
) -> _Table | None:
    columns = [
        _Column(()) if owner is None else _Column(_read_names(owner.rest), owner.rank)
        for owner in owners
    ]
    named = [owner for owner in owners if owner is not None]
    # A line of text that names ranks here and there is no head.
    return (
        _close(_Table(way, columns, -1, named[0].is_device))
        if len(named) >= len(told) - 3
        else None
    )


def _close(table: _Table) -> _Table:
    table.scales = [0.0] * len(table.columns)
    return table


def _read_names(text: str) -> tuple[Name, ...]:
    text = text.strip()
    whole = read_name(text[1:-1] if text[:1] in ("(", "[") and text[-1:] in (")", "]") else text)
    parts = [read_name(part.strip("() ")) for part in text.split("/")]
    # `tok/s` is one name, and `tok / ms` two.
    return tuple(parts) if len(parts) > 1 and all(one.kind for one in parts) else (whole,)


def _is_telling(table: _Table) -> bool:
    kinds = {name.kind for column in table.columns for name in column.names}
    return bool(kinds & {"time", "sum"})


def _is_of_work(name: str) -> bool:
    """Whether what a rank had to do is told by a time: not by that of its waits."""
    small = name.lower()
    return not any(word in small for word in ("wait", "comm", "reduce", "sync", "total", "gather"))


def _pair(column: _Column, cell: str) -> Iterator[tuple[Name, str]]:
    """Yield what is in a cell, by its names."""
    if len(column.names) == 1:
        yield column.names[0], cell
        return
    parts = cells.split_parts(cell)
    if len(parts) == len(column.names):
        yield from zip(column.names, parts, strict=True)


def _read_sum(cell: str) -> str:
    """Return a sum as it is written, which may be one in hexadecimal; empty where it is none."""
    small = cell.strip(".\u2026").lower()
    if small in ("nan", "inf", "-inf", "+inf"):
        return small
    is_hex = len(small) >= _LEAST_HASH and all(
        char in "0123456789abcdef" for char in small.removeprefix("0x")
    )
    return small if is_hex or cells.read_value(small) else ""


def _list_rows(text: str, table: _Table) -> Iterator[list[str]]:
    """Yield the cells of a row: one more at its end is what somebody says of it."""
    told = cells.split_cells(text, table.way)
    count = len(table.columns)
    if len(told) == count:
        yield told
    elif len(told) == count + 1 and not any(char.isdigit() for char in told[-1]):
        yield told[:-1]
