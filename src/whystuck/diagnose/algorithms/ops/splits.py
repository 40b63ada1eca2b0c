"""What ranks send each other in all_to_all, against what the receivers expect.

The op logs have the splits of each rank, flight recorders do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ops.log import P2P, Column, Ops, OpShape

_OPS = frozenset({"all_to_all", "all_to_all_base"})
# A mismatch ends what comes after it, so that it is among the last ops of a group.
_LAST = 8
# So many earlier calls of one place tell what its splits normally are.
_HISTORY = 64
# No tensor has more elements.
_MOST = 1 << 61
# What a rank gives each member and gets from it, in elements.
_Sizes = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class SplitMismatch:
    """An all_to_all in which a rank sends another one not what that expects.

    ``pairs`` are (sender, receiver, elements sent, elements expected); ``culprits`` the rank whose
    splits are wrong, or both ranks of the pairs where that cannot be told; ``reason`` says how it
    is known. ``rows`` are the rows of the op in the op logs by rank.
    """

    team: int
    place: int
    op: str
    pairs: tuple[tuple[int, int, int, int], ...]
    culprits: tuple[int, ...]
    reason: str
    rows: Mapping[int, int]


def find_split_mismatch(ops: Ops) -> SplitMismatch | None:
    """Find the first all_to_all of which the splits of two members do not fit.

    Only ops that did not come to an end on all members are looked at.

    Args:
        ops: The op logs.

    Returns:
        The mismatch, or None.
    """
    is_one = np.array([form.op in _OPS for form in ops.forms], dtype=np.bool_)
    rows = np.flatnonzero(is_one[ops.form] & (ops.place > 0) & (ops.flags & P2P == 0))
    found = []
    for team in np.unique(ops.team[rows]).tolist():
        mine = rows[ops.team[rows] == team]
        for place in np.unique(ops.place[mine])[-_LAST:].tolist():
            mismatch = _check(ops, mine, mine[ops.place[mine] == place])
            if mismatch is not None:
                found.append(mismatch)
                break
    return min(found, key=lambda one: _first_ns(ops, one), default=None)


def _first_ns(ops: Ops, mismatch: SplitMismatch) -> int:
    return min(int(ops.enqueued_ns[row]) for row in mismatch.rows.values())


def _check(ops: Ops, history: Column, rows: Column) -> SplitMismatch | None:
    members = ops.teams[int(ops.team[rows[0]])].members
    row_by_rank = dict(zip(ops.rank[rows].tolist(), rows.tolist(), strict=True))
    # An op that all members have come out of has done no harm.
    if set(row_by_rank) == set(members) and bool(ops.done_ns[rows].all()):
        return None
    names = {ops.forms[number].op for number in ops.form[rows].tolist()}
    if len(names) != 1:
        return None
    sizes = {rank: _measure(ops, row, len(members)) for rank, row in row_by_rank.items()}
    pairs = _compare(ops, row_by_rank, sizes)
    if not pairs:
        return None
    culprits, reason = _blame(ops, history, row_by_rank, pairs, len(members))
    first = int(rows[0])
    return SplitMismatch(
        int(ops.team[first]),
        int(ops.place[first]),
        names.pop(),
        pairs,
        culprits,
        reason,
        row_by_rank,
    )


def _measure(ops: Ops, row: int, size: int) -> _Sizes | None:
    """Tell what a rank gives to and gets from each member, in elements; None when not known."""
    form = ops.forms[int(ops.form[row])]
    if form.op == "all_to_all":
        given = tuple(prod(shape) for shape in form.input_sizes)
        taken = tuple(prod(shape) for shape in form.output_sizes)
    else:
        given = _split(form, form.input_sizes, form.input_splits, size)
        taken = _split(form, form.output_sizes, form.output_splits, size)
    is_whole = len(given) == len(taken) == size
    return (given, taken) if is_whole and max((*given, *taken)) < _MOST else None


def _split(
    form: OpShape, shapes: Sequence[tuple[int, ...]], splits: tuple[int, ...], size: int
) -> tuple[int, ...]:
    if len(shapes) != 1 or not shapes[0]:
        return ()
    rest = prod(shapes[0][1:])
    if splits:
        return tuple(part * rest for part in splits)
    return (shapes[0][0] // size * rest,) * size if form.op else ()


def _compare(
    ops: Ops, rows: Mapping[int, int], sizes: Mapping[int, _Sizes | None]
) -> tuple[tuple[int, int, int, int], ...]:
    """List the pairs of which the sizes differ. Splits count by position in the group."""
    known = {rank: size for rank, size in sizes.items() if size is not None}
    if len(known) < 2:  # noqa: PLR2004 - nobody to compare with
        return ()
    order = ops.groups[int(ops.group[next(iter(rows.values()))])].ranks
    at = np.array([order.index(rank) for rank in known], dtype=np.int64)
    given = _stack([size[0] for size in known.values()])[:, at]
    taken = _stack([size[1] for size in known.values()])[:, at]
    ranks = list(known)
    return tuple(
        (ranks[i], ranks[j], int(given[i, j]), int(taken[j, i]))
        for i, j in np.argwhere(given != taken.T).tolist()
    )


def _stack(rows: Sequence[tuple[int, ...]]) -> NDArray[np.int64]:
    return np.array(rows, dtype=np.int64)


def _blame(
    ops: Ops,
    history: Column,
    rows: Mapping[int, int],
    pairs: Sequence[tuple[int, int, int, int]],
    size: int,
) -> tuple[tuple[int, ...], str]:
    """Name the rank whose splits are wrong: the one in all pairs, or that left its habit."""
    ends = [{sender, receiver} for sender, receiver, _, _ in pairs]
    common = set.intersection(*ends)
    if len(common) == 1 and any(one != ends[0] for one in ends):
        return tuple(common), "its splits fit those of no other rank named"
    involved = sorted(set(chain(*ends)))
    changed = {rank: _has_changed(ops, history, rows[rank], size) for rank in involved}
    if all(value is not None for value in changed.values()):
        odd = [rank for rank, value in changed.items() if value]
        if len(odd) == 1:
            return (odd[0],), "this call of the rank had other splits each time before"
    return tuple(involved), ""


def _has_changed(ops: Ops, history: Column, row: int, size: int) -> bool | None:
    """Tell whether a call of a rank always had other splits; None when they vary or are new."""
    same = (
        (ops.rank[history] == ops.rank[row])
        & (ops.site[history] == ops.site[row])
        & (ops.number[history] < ops.number[row])
    )
    before = {_measure(ops, one, size) for one in history[same][-_HISTORY:].tolist()}
    if len(before) != 1:
        return None
    return _measure(ops, row, size) not in before
