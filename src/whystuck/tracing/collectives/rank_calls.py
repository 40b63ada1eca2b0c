"""The calls of a rank, as little of them as comparing ranks needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Column, Table
from whystuck.evidence.traces.tables import RankHeader, RankTables
from whystuck.tracing.collectives.ops import UNEVEN_OPS

Whole = NDArray[np.int64]
Real = NDArray[np.float64]

CALLS = "collective_calls"
KINDS = "collective_kinds"
GROUPS = "collective_members"
# Times of a clock; the others are durations.
_TIMES = frozenset({"start_ns", "end_ns", "launch_ns"})
# Durations to a part in 10^7: half the memory of whole ns.
_ROUGH = ("own_ns", "own_compute_ns")
_WHOLE = ("number", "start_ns", "end_ns", "launch_ns", "exposed_ns")
# By which others find a call again.
_PLACE = ("device", "stream")


def slim_calls(tables: RankTables) -> RankTables:
    """Keep of a rank's tables what comparing ranks needs: 64 bytes a call.

    Texts, of which there are few, are taken out: ``kind`` and ``group`` of a call are rows of the
    tables `KINDS` and `GROUPS`.

    Args:
        tables: The tables of a rank, or what this made of them.

    Returns:
        The slim tables.
    """
    table = tables.tables.get(CALLS, Table())
    if KINDS in tables.tables or not len(table):
        return RankTables(tables.header, {name: tables.tables[name] for name in _list(tables)})
    kinds, kind = _take_out(table, "kind_key", ("op", "dtype", "bytes"))
    groups, group = _take_out(table, "group_key", ("group", "group_desc", "members", "group_size"))
    columns: dict[str, Column] = {"kind": kind, "group": group}
    columns |= {name: table[name] for name in _WHOLE}
    columns |= {name: table[name].astype(np.float32) for name in _ROUGH}
    columns |= {name: table[name].astype(np.int32) for name in _PLACE if name in table.columns}
    if set(kinds["op"].tolist()) & UNEVEN_OPS:
        columns["bytes"] = table["bytes"]
    slim = {CALLS: Table(columns), KINDS: kinds, GROUPS: groups}
    return RankTables(tables.header, slim)


def _list(tables: RankTables) -> list[str]:
    return [name for name in (CALLS, KINDS, GROUPS) if name in tables.tables]


def _take_out(table: Table, key: str, names: tuple[str, ...]) -> tuple[Table, NDArray[np.int32]]:
    unique, first, inverse = np.unique(table[key], return_index=True, return_inverse=True)
    taken = {name: table[name][first] for name in names}
    return Table({"key": unique, **taken}), inverse.astype(np.int32)


@dataclass(frozen=True)
class Kind:
    """What was done: the op, the type of its elements, and its size (where all ranks have one)."""

    op: str
    dtype: str
    bytes: int


@dataclass(frozen=True)
class GroupForm:
    """A process group as a rank knows it; ``members`` is a text, see `read_members`."""

    key: int
    name: str
    desc: str
    members: str
    size: int


@dataclass(frozen=True)
class RankCalls:
    """The calls of a rank.

    ``shift_ns`` is what is added to its times so that all ranks count from one time. ``kind`` is
    for each call a position in `Matching.kinds`; ``groups`` are the groups that ``columns``
    speaks of.
    """

    header: RankHeader
    columns: Mapping[str, Column]
    shift_ns: int
    kind: NDArray[np.int32]
    groups: tuple[GroupForm, ...]

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, name: str, rows: NDArray[np.integer]) -> Real:
        """Return a column of some calls; a time that is not known is NaN."""
        if not len(self):
            return np.full(len(rows), np.nan)
        values = self.columns[name][rows]
        if name not in _TIMES:
            return np.asarray(values, dtype=np.float64)
        shifted = (values + self.shift_ns).astype(np.float64)
        return np.where(values < 0, np.nan, shifted) if name == "launch_ns" else shifted


def read_rank(tables: RankTables, zero_ns: int, kinds: dict[Kind, int]) -> RankCalls:
    """Make the calls of a rank from its slim tables.

    Args:
        tables: What `slim_calls` made.
        zero_ns: The time from which times are counted.
        kinds: The numbers of kinds; what is new gets the next one.

    Returns:
        The calls.
    """
    table = tables.tables.get(CALLS, Table())
    if not len(table):
        return RankCalls(tables.header, {}, 0, np.empty(0, dtype=np.int32), ())
    listed = tables.tables[KINDS]
    numbers = [kinds.setdefault(Kind(*_plain(row[1:])), len(kinds)) for row in listed.rows()]
    groups = tuple(GroupForm(*row) for row in tables.tables[GROUPS].rows())
    return RankCalls(
        tables.header,
        table.columns,
        tables.header.base_ns - zero_ns,
        np.array(numbers, dtype=np.int32)[table["kind"]],
        groups,
    )


def _plain(row: tuple[str, str, int]) -> tuple[str, str, int]:
    """Leave out sizes that ranks do not share."""
    op, dtype, size = row
    return op, dtype, -1 if op in UNEVEN_OPS else size
