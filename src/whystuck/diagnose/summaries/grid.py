"""The ops of one group as a grid of codes: equal codes mean that two ranks did the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from whystuck.diagnose.algorithms.ops.alignment import (
    ABSENT,
    Alignment,
    align,
    clash_at,
    comparable_sizes,
)
from whystuck.diagnose.algorithms.ops.groups import GroupOps, is_active_only
from whystuck.diagnose.summaries import ops_view
from whystuck.evidence.ops.collectives import Collectives, IntColumn

# States of a cell; those of ranks that recorded no op there are negative, and codes themselves.
DONE, STARTED, PENDING, UNSEEN = 0, 1, 2, 3
NOT_THERE, NOT_KNOWN, OVER = -1, -2, -3
NAMES = {
    DONE: ops_view.DONE,
    STARTED: ops_view.STARTED,
    PENDING: ops_view.PENDING,
    UNSEEN: ops_view.END_UNKNOWN,
    NOT_THERE: ops_view.ABSENT,
    NOT_KNOWN: ops_view.UNKNOWN,
    OVER: ops_view.DONE,
}
_STATES = 4
_NEVER_NS = 1 << 62


@dataclass(frozen=True)
class Grid:
    """A line for each sequence number of a group, a column for each member.

    ``rows`` holds rows of the table of collectives, or ``ABSENT``; ``codes`` join state, op and
    call site of each cell into one number. Sizes count only where members must agree on them.
    """

    group: GroupOps
    table: Collectives
    ranks: tuple[int, ...]
    seqs: IntColumn
    rows: NDArray[np.int64]
    codes: NDArray[np.int64]

    @cached_property
    def first_pending(self) -> int | None:
        """The first line at which a member is not done."""
        lines = np.flatnonzero(self._is_open.any(axis=1))
        return int(lines[0]) if len(lines) else None

    @property
    def waiting_since_ns(self) -> int:
        """When the first op that is not done was issued; very large when all are done."""
        line = self.first_pending
        if line is None:
            return _NEVER_NS
        rows = self.rows[line][self._is_open[line]]
        return int(self.table.created_ns[rows].min(initial=_NEVER_NS))

    @cached_property
    def states(self) -> NDArray[np.int64]:
        """The state of each cell."""
        return np.where(self.codes < 0, self.codes, self.codes % _STATES)

    @cached_property
    def _is_open(self) -> NDArray[np.bool_]:
        return np.asarray((self.states == STARTED) | (self.states == PENDING))

    @cached_property
    def mismatches(self) -> IntColumn:
        """The lines at which members made other ops, or ops of other sizes or types."""
        place = np.where(self.codes < 0, -1, self.codes // _STATES // max(1, len(self.table.sites)))
        largest = place.max(axis=1, initial=-1)
        smallest = np.where(place < 0, largest[:, None], place).min(axis=1, initial=1 << 60)
        lines = np.flatnonzero(smallest != largest).tolist()
        bad = [line for line in lines if clash_at(self.alignment, line) is not None]
        return np.array(bad, dtype=np.int64)

    @cached_property
    def alignment(self) -> Alignment:
        """The grid in the form that the comparison of ops takes."""
        return Alignment(self.group, self.table, self.ranks, tuple(self.seqs.tolist()), self.rows)

    def find_columns(self, lines: IntColumn) -> list[IntColumn]:
        """Gather the ranks that do the same at all of some lines; the largest set comes first."""
        if not len(self.ranks):
            return []
        chosen = np.ascontiguousarray(self.codes[lines].T)
        _, inverse = np.unique(chosen, axis=0, return_inverse=True)
        inverse = inverse.ravel()
        order = np.argsort(inverse, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(inverse[order])) + 1)
        return sorted(parts, key=lambda part: (-len(part), int(part[0])))


def make_grid(table: Collectives, group: GroupOps, chosen: Sequence[int] = ()) -> Grid:
    """Lay the ops of a group side by side.

    Args:
        table: All ops.
        group: The group.
        chosen: The ranks to show; all when empty.

    Returns:
        The grid; its first line is the first that all rings still hold.
    """
    seqs, ranks, rows = _lay_out(table, group)
    members = sorted(group.members | set(ranks))
    if chosen:
        members = [rank for rank in members if rank in set(chosen)]
    wide = np.full((len(seqs), len(members)), ABSENT, dtype=np.int64)
    place = {rank: column for column, rank in enumerate(ranks)}
    columns = [column for column, rank in enumerate(members) if rank in place]
    wide[:, columns] = rows[:, [place[members[column]] for column in columns]]
    return Grid(group, table, tuple(members), seqs, wide, _code(table, group, members, seqs, wide))


def _lay_out(
    table: Collectives, group: GroupOps
) -> tuple[IntColumn, tuple[int, ...], NDArray[np.int64]]:
    if not is_active_only(table):
        alignment = align(table, group)
        return np.array(alignment.seqs, dtype=np.int64), alignment.ranks, alignment.rows
    # Where only active ops are kept, what a rank does not have is over: nothing is cut off.
    ranks = tuple(sorted(group.rows_by_rank))
    seqs = np.unique(np.concatenate([table.seq[group.rows_by_rank[rank]] for rank in ranks]))
    rows = np.full((len(seqs), len(ranks)), ABSENT, dtype=np.int64)
    for column, rank in enumerate(ranks):
        own = group.rows_by_rank[rank]
        rows[np.searchsorted(seqs, table.seq[own]), column] = own
    return seqs, ranks, rows


def _code(
    table: Collectives,
    group: GroupOps,
    members: Sequence[int],
    seqs: IntColumn,
    rows: NDArray[np.int64],
) -> NDArray[np.int64]:
    if not len(table):
        return rows.copy()
    state = np.where(table.done[rows], DONE, np.where(table.started[rows], STARTED, PENDING))
    if len(table.unseen):
        state = np.where(table.unseen[rows], UNSEEN, state)
    place = _number_forms(table)[table.form[rows]] * max(1, len(table.sites)) + table.site[rows]
    codes = place * _STATES + state
    away = rows == ABSENT
    codes[away] = NOT_THERE
    first_by_rank = {dump.rank: dump.first_record for dump in table.dumps}
    active_only = is_active_only(table)
    for column, rank in enumerate(members):
        own = group.rows_by_rank.get(rank)
        if own is None and first_by_rank.get(rank, 1) > 0:
            codes[:, column] = NOT_KNOWN
        elif active_only and own is not None:
            over = away[:, column] & (seqs < int(table.seq[own[0]]))
            codes[over, column] = OVER
    return codes


def _number_forms(table: Collectives) -> IntColumn:
    """Give forms that may meet in one op the same number."""
    number_by_key: dict[object, int] = {}
    keys = [(form.label, comparable_sizes(form), form.input_dtypes) for form in table.forms]
    numbers = [number_by_key.setdefault(key, len(number_by_key)) for key in keys]
    return np.array(numbers, dtype=np.int64)
