"""Heads of tables of ranks: which columns they have, and of which rank each is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from whystuck.parse.logs.blocks.tables import cells
from whystuck.parse.logs.blocks.tables.column_names import Name, read_name

_LEAST_RANKS = 3
_LEAST_COLUMNS = 2
# So many phases are a head without a column of ranks.
_LEAST_PHASES = 3
_MOST_NAME = 60
# Columns of other things beside those of ranks: a step, a mean, a unit.
_MOST_OTHERS = 3
# pandas puts the number of each row before it, and two blanks behind that.
_LEAST_INDENT = 3
# A shorter text of hexadecimal digits may be a word.
_LEAST_HASH = 6


@dataclass(frozen=True)
class Column:
    """What the cells of a column hold, and of which rank; -1 where rows have ranks."""

    names: tuple[Name, ...]
    rank: int = -1


@dataclass
class RankTable:
    """A table that has begun, in one of the ways in which its head may be split."""

    way: Callable[[str], list[str]]
    columns: list[Column]
    # The column that names the rank of a row; -1 where columns are of ranks.
    rank_at: int
    is_device: bool
    host_at: int = -1
    scales: list[float] = field(default_factory=list)
    # What all cells hold, where the head says it once; the ranks where it says which.
    shared: tuple[Name, ...] = ()
    ranks: range = range(0)
    # Whether the head leaves room for the numbers that pandas puts before rows.
    is_indexed: bool = False
    # Whether rows call ranks by a word, as nothing in the head says that they are of ranks.
    is_named: bool = False


def read_rank_head(text: str, way: Callable[[str], list[str]]) -> RankTable | None:
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
        if is_row:
            columns = [Column(()), *(Column((Name("", ""),), rank) for rank in numbers)]
            return _close(RankTable(way, columns, -1, heads[0] == "device"))
    at = next(
        (at for kind in ("rank", "device") for at, one in enumerate(heads) if one == kind), -1
    )
    if at < 0:
        return _head_phases(told, way)
    if heads.count(heads[at]) > 1:
        return None
    columns = [
        Column((Name(cell, ""),) if head else _read_names(cell))
        for cell, head in zip(told, heads, strict=True)
    ]
    host = next((i for i, one in enumerate(columns) if one.names[0].kind == "host"), -1)
    table = _close(RankTable(way, columns, at, heads[at] == "device", host))
    table.is_indexed = text[:_LEAST_INDENT].isspace() and len(text) > _LEAST_INDENT
    return table


def _head_ranks(
    told: list[str], way: Callable[[str], list[str]], owners: Sequence[cells.Owner | None]
) -> RankTable | None:
    columns = [
        Column(()) if owner is None else Column(_read_names(owner.rest), owner.rank)
        for owner in owners
    ]
    named = [owner for owner in owners if owner is not None]
    if len(named) == len(told):
        # Nothing stands above the names of rows.
        columns.insert(0, Column(()))
        told = ["", *told]
    # A line of text that names ranks here and there is no head.
    return (
        _close(RankTable(way, columns, -1, named[0].is_device))
        if len(named) >= len(told) - _MOST_OTHERS
        else None
    )


def _head_phases(told: list[str], way: Callable[[str], list[str]]) -> RankTable | None:
    """Return the table whose head has phases alone: each row begins with the name of its rank."""
    columns = [Column(_read_names(cell)) for cell in told if cell]
    times = sum(name.kind == "time" for column in columns for name in column.names)
    if times < _LEAST_PHASES or any(char.isdecimal() for cell in told for char in cell):
        return None
    columns.insert(0, Column((Name("", ""),)))
    return _close(RankTable(way, columns, 0, is_device=False, is_named=True))


def _close(table: RankTable) -> RankTable:
    table.scales = [0.0] * len(table.columns)
    return table


def _read_names(text: str) -> tuple[Name, ...]:
    text = text.strip()
    whole = read_name(text[1:-1] if text[:1] in ("(", "[") and text[-1:] in (")", "]") else text)
    parts = [read_name(part.strip("() ")) for part in text.split("/")]
    # `tok/s` is one name, and `tok / ms` two.
    return tuple(parts) if len(parts) > 1 and all(one.kind for one in parts) else (whole,)


def pair_names(column: Column, cell: str) -> Iterator[tuple[Name, str]]:
    """Yield what is in a cell, by its names."""
    if len(column.names) == 1:
        yield column.names[0], cell
        return
    parts = cells.split_parts(cell)
    if len(parts) == len(column.names):
        yield from zip(column.names, parts, strict=True)
    elif len(parts) == 1:
        # Both together: `rs/ag`
        first = column.names[0]
        yield Name("/".join(name.text for name in column.names), first.kind, first.scale), cell


def read_sum(cell: str) -> str:
    """Return a sum as it is written, which may be one in hexadecimal; empty where it is none."""
    small = cell.strip(".\u2026").lower()
    if small in ("nan", "inf", "-inf", "+inf"):
        return small
    is_hex = len(small) >= _LEAST_HASH and all(
        char in "0123456789abcdef" for char in small.removeprefix("0x")
    )
    return small if is_hex or cells.read_value(small) else ""


def list_rows(text: str, table: RankTable) -> Iterator[list[str]]:
    """Yield the cells of a row: one more at its end is what somebody says of it."""
    told = cells.split_cells(text, table.way)
    count = len(table.columns)
    if table.is_named and (not told or cells.read_owner(told[0]) is None):
        return
    if len(told) == count:
        yield told
    elif len(told) == count - 1 and table.rank_at < 0:
        yield ["", *told]  # the rows have no names
    elif len(told) == count + 1 and not any(char.isdigit() for char in told[-1]):
        yield told[:-1]
    elif len(told) == count + 1 and table.is_indexed and told[0].isdecimal():
        yield told[1:]
