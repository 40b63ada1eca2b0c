"""The ops of one group laid side by side, and the first place where ranks disagree.

Rows of ranks are matched by sequence number, from the largest first number over ranks, because
rings wrap at different places. What is compared is the call site, and the form of the op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.diagnose.algorithms.stacks.frames import is_user_frame
from whystuck.evidence.ops.collectives import NO_PEER, UNKNOWN_OP, Collectives, OpForm
from whystuck.evidence.ops.names import count_shared

ABSENT = -1
# Numbers of one group follow each other, save where a backend counts ops that it does not record.
_MAX_SPARSENESS = 4


@dataclass(frozen=True)
class Alignment:
    """One group as a table: a line for each sequence number, a column for each rank.

    ``rows`` holds rows of the table of collectives, or ``ABSENT``.
    """

    group: GroupOps
    table: Collectives
    ranks: tuple[int, ...]
    seqs: tuple[int, ...]
    rows: NDArray[np.int64]

    @cached_property
    def _key_by_row_pair(self) -> dict[tuple[int, int], int]:
        return {}

    @cached_property
    def _keys(self) -> dict[object, int]:
        return {}

    def key_of(self, row: int) -> int:
        """Return a number that is equal for ops issued from one place of the program.

        Without frames, the op and the sizes that its members share stand for the place.
        """
        pair = int(self.table.site[row]), int(self.table.form[row])
        key = self._key_by_row_pair.get(pair)
        if key is None:
            frames = self.table.sites[pair[0]].frames
            chain = tuple((frame.file, frame.line) for frame in frames if is_user_frame(frame))
            form = self.table.forms[pair[1]]
            identity = (chain, form.op) if chain else (form.op, comparable_sizes(form))
            key = self._keys.setdefault(identity, len(self._keys))
            self._key_by_row_pair[pair] = key
        return key

    @cached_property
    def keys(self) -> NDArray[np.int64]:
        """The keys of all rows in the shape of ``rows``, with ``ABSENT`` where nobody is."""
        number_of_forms = max(1, len(self.table.forms))
        pairs = self.table.site[self.rows] * number_of_forms + self.table.form[self.rows]
        _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
        flat = self.rows.ravel()
        keys = np.array(
            [ABSENT if flat[i] == ABSENT else self.key_of(int(flat[i])) for i in first.tolist()],
            dtype=np.int64,
        )
        # A pair may first be met where a row is absent; its key is then looked up again.
        for position in np.flatnonzero(keys == ABSENT).tolist():
            there = np.flatnonzero((inverse.ravel() == position) & (flat != ABSENT))
            if len(there):
                keys[position] = self.key_of(int(flat[there[0]]))
        return np.where(self.rows == ABSENT, ABSENT, keys[inverse.reshape(self.rows.shape)])

    def rows_at(self, index: int) -> dict[int, int]:
        """Return the row of each rank that is present at a line of the table."""
        line = self.rows[index].tolist()
        return {rank: row for rank, row in zip(self.ranks, line, strict=True) if row != ABSENT}

    def keys_at(self, index: int) -> dict[int, int]:
        """Return the key of each rank that is present at a line of the table."""
        line = self.keys[index].tolist()
        return {rank: key for rank, key in zip(self.ranks, line, strict=True) if key != ABSENT}

    def keys_of(self, rank: int, start: int = 0) -> list[int]:
        """Return the keys of one rank from a line of the table on."""
        column = self.keys[start:, self.ranks.index(rank)].tolist()
        return [key for key in column if key != ABSENT]

    def form_of(self, row: int) -> OpForm:
        """Return the form of a row."""
        return self.table.forms[int(self.table.form[row])]


def align(table: Collectives, group: GroupOps) -> Alignment:
    """Lay the ops of a group side by side.

    Args:
        table: All ops.
        group: The group.

    Returns:
        The table of lines and ranks.
    """
    ranks = tuple(sorted(group.rows_by_rank))
    first = max(int(table.seq[group.rows_by_rank[rank][0]]) for rank in ranks)
    last = max(int(table.seq[group.rows_by_rank[rank][-1]]) for rank in ranks)
    lines = _LineNumbers(table, group, first, last)
    rows = np.full((lines.count, len(ranks)), ABSENT, dtype=np.int64)
    for column, rank in enumerate(ranks):
        own = group.rows_by_rank[rank]
        own_seq = table.seq[own]
        start = int(np.searchsorted(own_seq, first))
        rows[lines.find(own_seq[start:]), column] = own[start:]
    used = (rows != ABSENT).any(axis=1)
    return Alignment(group, table, ranks, tuple(lines.seqs[used].tolist()), rows[used])


class _LineNumbers:
    """Gives each sequence number of a group a line: by counting when they are dense."""

    def __init__(self, table: Collectives, group: GroupOps, first: int, last: int) -> None:
        parts = group.rows_by_rank.values()
        longest = max(len(rows) for rows in parts)
        self._first = first
        self._is_dense = last - first < _MAX_SPARSENESS * longest
        if self._is_dense:
            self.seqs: NDArray[np.int64] = np.arange(first, last + 1, dtype=np.int64)
        else:
            seqs = np.unique(np.concatenate([table.seq[rows] for rows in parts]))
            self.seqs = seqs[seqs >= first]
        self.count = len(self.seqs)

    def find(self, seqs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lines of sequence numbers."""
        return seqs - self._first if self._is_dense else np.searchsorted(self.seqs, seqs)


class Clash:
    """The kinds of hard evidence at a line, in order of strength."""

    OP = "op"
    SIZE = "size"
    DTYPE = "dtype"
    ROOT = "root"
    ABSENT = "absent"


def find_clash(alignment: Alignment) -> tuple[int, str] | None:
    """Find the first line after the last good one where members disagree or do not come.

    Args:
        alignment: The group.

    Returns:
        The line and what is wrong with it, or None.
    """
    table, rows = alignment.table, alignment.rows
    present = rows != ABSENT
    done = present & table.done[rows]
    complete = present.all(axis=1) & done.all(axis=1)
    start = 0
    for index in np.flatnonzero(complete)[::-1].tolist():
        if clash_at(alignment, index) is None:
            start = index + 1
            break
    for index in range(start, len(alignment.seqs)):
        clash = clash_at(alignment, index)
        if clash is not None:
            return index, clash
        if not present[index].all() and not done[index][present[index]].all():
            return index, Clash.ABSENT
    return None


def clash_at(alignment: Alignment, index: int) -> str | None:
    """Tell how the forms of the ranks that are present at a line disagree."""
    rows = alignment.rows_at(index).values()
    numbers = {int(alignment.table.form[row]) for row in rows}
    if len(numbers) < 2:  # noqa: PLR2004 - one form cannot disagree with itself
        return None
    forms = [alignment.table.forms[number] for number in numbers]
    if len({form.op for form in forms} - {UNKNOWN_OP}) > 1:
        return Clash.OP
    if len({sizes for form in forms if (sizes := comparable_sizes(form))}) > 1:
        return Clash.SIZE
    if len({form.input_dtypes for form in forms if form.input_dtypes}) > 1:
        return Clash.DTYPE
    is_over = len(rows) == len(alignment.ranks) and all(alignment.table.done[list(rows)])
    if not is_over and len({form.root for form in forms} - {NO_PEER}) > 1:
        return Clash.ROOT
    return None


def comparable_sizes(form: OpForm) -> tuple[int, ...]:
    """Return the element counts that members must agree on; empty when they need not."""
    return count_shared(form.op, form.input_sizes, form.output_sizes)


def split_by(values: Mapping[int, object]) -> list[tuple[int, ...]]:
    """Group ranks by equal values, the largest group first; ties by the lowest rank."""
    ranks_by_value: dict[object, list[int]] = {}
    for rank in sorted(values):
        ranks_by_value.setdefault(values[rank], []).append(rank)
    return sorted((tuple(ranks) for ranks in ranks_by_value.values()), key=_order_class)


def _order_class(ranks: tuple[int, ...]) -> tuple[int, int]:
    return -len(ranks), ranks[0]


def is_tie(classes: Sequence[Sequence[int]]) -> bool:
    """Tell whether no class of ranks is larger than all others."""
    return len(classes) > 1 and len(classes[0]) == len(classes[1])


def matches_shifted(longer: Sequence[int], shorter: Sequence[int]) -> bool:
    """Tell whether dropping the first of ``longer`` makes the two run in step to the end."""
    return bool(longer[1:]) and bool(shorter) and _is_equal(longer[1:], shorter)


def _is_equal(first: Sequence[int], second: Sequence[int]) -> bool:
    return all(left == right for left, right in zip(first, second, strict=False))


def find_successors(history: Sequence[int], key: int) -> set[int]:
    """Find which keys came directly after a key in a history."""
    return {after for before, after in pairwise(history) if before == key}


def differing_lines(alignment: Alignment, stop: int) -> list[int]:
    """Find the lines before ``stop`` where the call sites of present ranks differ."""
    keys = alignment.keys[:stop]
    largest = keys.max(axis=1, initial=ABSENT)
    smallest = np.where(keys == ABSENT, largest[:, None], keys).min(axis=1)
    return [int(index) for index in np.flatnonzero(largest != smallest)]
