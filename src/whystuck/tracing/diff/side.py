"""One run of a comparison: the tables of its ranks, added up as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.finding import Gap
from whystuck.evidence.table import Table
from whystuck.evidence.traces.tables import RankTables

Real = NDArray[np.float64]
Whole = NDArray[np.int64]

# What is added up of each item.
MEASURES = ("count", "sum_ns", "self_ns", "device_ns")
TREE_MEASURES = ("sum_ns", "self_ns", "device_ns")
DEVICE_KINDS = ("kernel", "copy", "device annotation", "sync")


class Grid:
    """Sums for each step and name, in an array that grows with both."""

    def __init__(self, width: int) -> None:
        self._keys: dict[tuple[str, ...], int] = {}
        self._values = np.zeros((width, 0, 0))

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """What each column is of."""
        return tuple(self._keys)

    def index(self, columns: list[list[str]]) -> Whole:
        """Return the column of each row of some texts; new ones get the next."""
        keys = self._keys
        found = [keys.setdefault(key, len(keys)) for key in zip(*columns, strict=True)]
        return np.array(found, dtype=np.int64)

    def add(self, row: Whole, column: Whole, values: Sequence[NDArray[np.generic]]) -> None:
        """Add values, one array for each measure."""
        rows, columns = int(row.max(initial=-1)) + 1, len(self._keys)
        have = self._values.shape
        if rows > have[1] or columns > have[2]:
            # By half as much again where it is too small, so that it is rarely moved.
            need = (_grow(have[1], rows), _grow(have[2], columns))
            grown = np.zeros((have[0], *need))
            grown[:, : have[1], : have[2]] = self._values
            self._values = grown
        for at, one in enumerate(values):
            np.add.at(self._values[at], (row, column), one)

    def get(self, measure: int, rows: int) -> Real:
        """Return the sums of a measure: a row for each of some rows, a column for each key."""
        made = np.zeros((rows, len(self._keys)))
        kept = self._values[measure][:rows, : len(self._keys)]
        made[: kept.shape[0], : kept.shape[1]] = kept
        return made


def _grow(have: int, need: int) -> int:
    return have if need <= have else max(need, have + have // 2)


@dataclass(frozen=True)
class RankTimes:
    """The steps of one rank: their numbers, how long each took, and that without communication."""

    rank: int
    step: Whole
    wall_ns: Real
    own_ns: Real


@dataclass
class UsualStep:
    """The tree of calls of some ranks that make the same calls: their sums, and who they are.

    ``kind``, ``name`` and ``parent`` are those of the first rank; ``sums`` has the rows
    `TREE_MEASURES`.
    """

    kind: NDArray[np.object_]
    name: NDArray[np.object_]
    parent: Whole
    sums: Whole
    ranks: list[int]

    def mean(self) -> Whole:
        """Return the sums as means over the ranks."""
        return np.rint(self.sums / len(self.ranks)).astype(np.int64)


@dataclass
class Side:
    """One of the two runs. Add the tables of each rank; what is kept does not grow with ranks.

    But for some numbers of each rank: its steps, and the share of each name in its time.
    """

    label: str
    steps: dict[int, int] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)
    ranks: list[RankTimes] = field(default_factory=list)
    items: Grid = field(default_factory=lambda: Grid(len(MEASURES)))
    shares: Grid = field(default_factory=lambda: Grid(1))
    rank_shares: Grid = field(default_factory=lambda: Grid(1))
    rank_items: Grid = field(default_factory=lambda: Grid(1))
    rank_counts: list[int] = field(default_factory=list)
    wall_ns: list[float] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    trees: dict[str, UsualStep] = field(default_factory=dict)
    device_events: int = 0
    events: int = 0

    def add(self, tables: RankTables) -> None:
        """Take in the tables of one rank."""
        self.events += tables.header.events
        self.device_events += tables.header.device_events
        steps = tables.tables["diff_steps"]
        if not len(steps):
            return
        self.marks |= set(steps["mark"].tolist())
        place = {
            number: self.steps.setdefault(number, len(self.steps))
            for number in steps["step"].tolist()
        }
        missing = len(self.steps) - len(self.wall_ns)
        self.wall_ns += [0.0] * missing
        self.rank_counts += [0] * missing
        for number, wall in zip(steps["step"].tolist(), steps["wall_ns"].tolist(), strict=True):
            self.wall_ns[place[number]] += wall
            self.rank_counts[place[number]] += 1
        self._add_items(tables.tables["diff_items"], place, len(steps))
        comm = self._add_shares(tables.tables["diff_shares"], place, len(steps))
        wall_ns = steps["wall_ns"].astype(np.float64)
        self._add_tree(tables.tables["diff_nodes"], tables.header.rank)
        own = wall_ns - np.array([comm.get(one, 0) for one in steps["step"].tolist()])
        self.ranks.append(RankTimes(tables.header.rank, steps["step"], wall_ns, own))

    def _add_tree(self, table: Table, rank: int) -> None:
        if not len(table):
            return
        sums = np.array([table[name] for name in TREE_MEASURES])
        known = self.trees.get(table["shape"][0])
        # Shapes are hashes: what is hostile may have one in common and differ in length.
        if known is not None and known.sums.shape == sums.shape:
            known.sums = known.sums + sums
            known.ranks.append(rank)
        elif known is None:
            columns = table["kind"], table["name"], table["parent"]
            self.trees[table["shape"][0]] = UsualStep(*columns, sums, [rank])

    def _add_items(self, table: Table, place: dict[int, int], steps: int) -> None:
        names = [table["kind"].tolist(), table["name"].tolist()]
        row = np.array([place[one] for one in table["step"].tolist()], dtype=np.int64)
        self.items.add(row, self.items.index(names), [table[name] for name in MEASURES])
        is_device = np.isin(table["kind"].astype(str), DEVICE_KINDS)
        main = np.where(is_device, table["sum_ns"], table["self_ns"])
        rank = np.full(len(table), len(self.ranks), dtype=np.int64)
        self.rank_items.add(rank, self.rank_items.index(names), [main / steps])

    def _add_shares(self, table: Table, place: dict[int, int], steps: int) -> dict[int, int]:
        names = [table[name].tolist() for name in ("class", "kind", "name")]
        numbers = table["step"].tolist()
        row = np.array([place[one] for one in numbers], dtype=np.int64)
        self.shares.add(row, self.shares.index(names), [table["ns"]])
        rank = np.full(len(table), len(self.ranks), dtype=np.int64)
        self.rank_shares.add(rank, self.rank_shares.index(names), [table["ns"] / steps])
        comm: dict[int, int] = {}
        for step, kind, ns in zip(numbers, names[0], table["ns"].tolist(), strict=True):
            if kind == "exposed_comm":
                comm[step] = comm.get(step, 0) + ns
        return comm

    @property
    def order(self) -> Whole:
        """The places of the steps, by their number."""
        return np.array([self.steps[one] for one in sorted(self.steps)], dtype=np.int64)

    @property
    def step_ns(self) -> Real:
        """The mean time of each step over the ranks that have it, in order of number."""
        means = np.array(self.wall_ns) / np.array(self.rank_counts)
        ordered: Real = means[self.order]
        return ordered

    def get_items(self, measure: str) -> Real:
        """Return a measure of items: a row a step, in order of number; means over ranks."""
        return self._by_step(self.items, MEASURES.index(measure))

    def get_shares(self) -> Real:
        """Return the ns of each class, kind and name: a row a step; means over ranks."""
        return self._by_step(self.shares, 0)

    def _by_step(self, grid: Grid, measure: int) -> Real:
        sums = grid.get(measure, len(self.steps)) / np.array(self.rank_counts)[:, None]
        ordered: Real = sums[self.order]
        return ordered


def line_up(
    a: tuple[tuple[str, ...], ...], b: tuple[tuple[str, ...], ...]
) -> tuple[list[tuple[str, ...]], Whole, Whole]:
    """Put the keys of two grids in one list, with the column of each in both; -1 for none."""
    keys = list(dict.fromkeys((*a, *b)))
    columns = []
    for one in (a, b):
        at = {key: index for index, key in enumerate(one)}
        columns.append(np.array([at.get(key, -1) for key in keys], dtype=np.int64))
    return keys, columns[0], columns[1]


def pick(values: Real, columns: Whole) -> Real:
    """Return columns of an array, 0 where there is none."""
    padded = np.c_[values, np.zeros(len(values))]
    found: Real = padded[:, columns]
    return found
