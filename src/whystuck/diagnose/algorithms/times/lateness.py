"""Who comes last to the ops of a group, step after step, whatever the clocks say.

On a host, what a rank takes by itself between ops tells (`own_times`). Its excess over the slowest
of its peers is what they all wait for, once in a step, wherever in the step the ops are. It is
summed over stretches in which ranks do the work of about a step, so that ops which follow each
other directly, in which nobody can be late, do not count. On a device, `waiting_times` tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whystuck.diagnose.algorithms.ops.alignment import ABSENT, Alignment, align
from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.diagnose.algorithms.ops.progress import list_ranks, slice_rank
from whystuck.diagnose.algorithms.times.late_spans import LateSpan, find_late_span
from whystuck.diagnose.algorithms.times.own_times import Rounds, Times
from whystuck.diagnose.algorithms.times.waiting_times import find_least_waiting, measure_waits
from whystuck.evidence.ops.collectives import Collectives

# Fewer ops or stretches than this say nothing about a habit; more ops than that add nothing.
_MIN_OPS = 10
_MAX_OPS = 500
_RECENT_OPS = (160, 40)
# A stretch has this many times the work that most of the time is made of: where nothing tells what
# a step is, its parts come to lie in one stretch.
_STRETCH = 1.5
# Steps that are fewer than this part of them are rare.
_FEW = 0.02
# Calls that a rank makes this much more rarely than its most frequent one tell nothing of its role.
_RARE = 0.1
_HALF = 0.5
# A rank is late by itself if so much of its excess remains without transfers: 0.06 at most where a
# link is slow, 0.48 and more where a rank computes longer, in the jobs of `bench/slow.py`.
_LEAST_OWN = 0.25
# So few stretches before or after are none.
_AT_ENDS = 4
_MIN_LOST_NS = 5_000_000
_MIN_LOST_SHARE = 0.03


@dataclass(frozen=True)
class Late:
    """Ranks that come last: nearly always one.

    ``share_last`` is the share of stretches in which it came last, ``lost_ns`` the median time for
    which the others waited for it alone, ``lost_share`` the share of the whole time that makes.
    ``is_sure`` is false when its clock may be the reason. ``row`` is an op of the latest of
    them, ``count`` how many times the others waited. ``first_row`` is its first op of the time in
    which they were late, -1 when they were from the start; ``last_row`` the last one, -1 when they
    still are.
    """

    ranks: tuple[int, ...]
    group: GroupOps
    share_last: float
    lost_ns: float
    lost_share: float
    offset_ns: float
    is_sure: bool
    row: int
    count: int
    first_row: int = -1
    last_row: int = -1

    @property
    def rank(self) -> int:
        """The rank of ``row``, the latest."""
        return self.ranks[0]


def find_late(
    table: Collectives,
    groups: Iterable[GroupOps],
    rounds: Iterable[Rounds],
    device_ranks: frozenset[int],
) -> tuple[Late, ...]:
    """Find ranks that are late to the collectives of their peers.

    Ranks are compared with ranks of one role only, those that make the same calls.

    Args:
        table: All ops.
        groups: The groups of the table.
        rounds: The own times in groups whose ops run on hosts.
        device_ranks: Ranks whose ops run on a device, while their hosts may run ahead.

    Returns:
        Each rank at most once; none that is itself held up by another one.
    """
    roles = _find_roles(table)
    found = []
    for one in rounds:
        late = find_late_steps(one) if _is_one_role(roles, one.ranks) else None
        if late is not None:
            found.append(late)
    for group in groups:
        ranks = group.rows_by_rank
        is_whole = len(ranks) > 1 and group.members <= set(ranks)
        if not is_whole or device_ranks.isdisjoint(ranks):
            continue
        late = _judge_waits(align(table, group)) if _is_one_role(roles, ranks) else None
        if late is not None:
            found.append(late)
    if any(not device_ranks.isdisjoint(late.ranks) for late in found):
        return _keep_root(table, found)
    kept: list[Late] = []
    for late in sorted(found, key=lambda late: -late.lost_share):
        told = {rank for one in kept for rank in one.ranks}
        if told.isdisjoint(late.ranks) and not _is_held_up(late, found):
            kept.append(late)
    return tuple(kept)


def _keep_root(table: Collectives, found: Sequence[Late]) -> tuple[Late, ...]:
    """Keep the rank that waits least of all, by what it makes others wait, if it is late at all.

    One that is late to a group because it waited in another one has waited as long as its peers.
    """
    ranks = frozenset().union(*(late.group.members for late in found))
    waits = measure_waits(table, ranks)
    root = min(waits, key=lambda rank: waits[rank].total_ns, default=None)
    mine = [late for late in found if root in late.ranks]
    if root is None or not mine:
        return ()
    late = max(mine, key=lambda late: late.lost_ns)
    least_ns = _HALF * late.lost_ns * late.count
    others = [waits[rank] for rank in waits if rank != root]
    return (late,) if all(waits[root].is_below(one, least_ns) for one in others) else ()


def is_late_itself(late: Late, rounds: Iterable[Rounds], apart: Iterable[Rounds]) -> bool:
    """Return whether ranks take longer by themselves, not only because they leave ops late.

    Args:
        late: The ranks.
        rounds: The rounds from which they are known.
        apart: The same rounds, up to the ends of ops left out.
    """
    for one, other in zip(rounds, apart, strict=True):
        if one.group is late.group:
            columns = [one.ranks.index(rank) for rank in late.ranks]
            rows = one.rows[:, columns[0]]
            chosen = (rows >= late.first_row) & (one.is_known)
            if late.last_row >= 0:
                chosen &= rows <= late.last_row
            excess_ns = _find_excess(one.own_ns[chosen], columns)
            return _find_excess(other.own_ns[chosen], columns) >= _LEAST_OWN * excess_ns
    return True


def _find_excess(own_ns: Times, columns: Sequence[int]) -> float:
    """Return how much longer some ranks take in the mean than any other one."""
    mean_ns = own_ns.mean(axis=0)
    return float(mean_ns[list(columns)].min() - np.delete(mean_ns, columns).max())


def _is_one_role(roles: Mapping[int, bytes], ranks: Iterable[int]) -> bool:
    return len({roles[rank] for rank in ranks}) == 1


def _find_roles(table: Collectives) -> dict[int, bytes]:
    """Find what calls each rank makes, sizes and rare calls left out."""
    numbers: dict[object, int] = {}
    ops = [
        numbers.setdefault((form.op, form.source, form.target), len(numbers))
        for form in table.forms
    ]
    op_by_form = np.array(ops or [0], dtype=np.int64)
    roles = {}
    for rank in list_ranks(table):
        own = slice_rank(table, rank)
        calls = table.site[own].astype(np.int64) * max(1, len(numbers))
        kinds, counts = np.unique(calls + op_by_form[table.form[own]], return_counts=True)
        roles[rank] = kinds[counts >= _RARE * counts.max()].tobytes()
    return roles


def _is_held_up(late: Late, found: Iterable[Late]) -> bool:
    """Tell whether a rank is late because a member of another group of its is."""
    return any(
        set(other.ranks).isdisjoint(late.ranks)
        and other.group.members.issuperset(late.ranks)
        and _count_ops(other) >= _count_ops(late)
        for other in found
    )


def _count_ops(late: Late) -> int:
    return len(late.group.rows_by_rank[late.ranks[0]])


def find_late_steps(rounds: Rounds) -> Late | None:
    """Find the rank that takes longer than all others in most stretches, by more than chance.

    Args:
        rounds: The own times of ranks of one role.

    Returns:
        The rank; None when no rank is late throughout, or there are too few steps.
    """
    own_ns = rounds.own_ns[rounds.is_known]
    if len(own_ns) < _MIN_OPS:
        return None
    _, step = np.unique(rounds.steps[rounds.is_known], return_inverse=True)
    by_step_ns = np.zeros((int(step[-1]) + 1, own_ns.shape[1]))
    np.add.at(by_step_ns, step, own_ns)
    by_step, count = _cut(np.sort(by_step_ns, axis=1)[:, -2])
    stretch = by_step[step]
    total_ns = np.zeros((count, own_ns.shape[1]))
    np.add.at(total_ns, stretch[stretch < count], own_ns[stretch < count])
    steps = np.bincount(by_step, minlength=count)[:count]
    if not rounds.has_steps:
        steps = np.ones(count, dtype=np.int64)
    span = find_late_span(total_ns, steps)
    if span is None:
        return None
    chosen = (stretch >= span.first) & (stretch <= span.last)
    late = _describe(rounds, np.flatnonzero(rounds.is_known)[chosen], span)
    first_row = late.first_row if span.first >= _AT_ENDS else -1
    last_row = late.last_row if span.last < count - _AT_ENDS else -1
    return replace(late, first_row=first_row, last_row=last_row)


def _cut(work_ns: Times) -> tuple[NDArray[np.int64], int]:
    """Cut steps into stretches of about as much work.

    Returns:
        The stretch of each step, and how many are whole: the last may be cut short.
    """
    least_ns = _STRETCH * _find_usual(work_ns)
    stretch, number, done_ns = np.zeros(len(work_ns), dtype=np.int64), 0, 0.0
    for place, own_ns in enumerate(work_ns.tolist()):
        stretch[place] = number
        done_ns += own_ns
        if done_ns >= least_ns:
            number, done_ns = number + 1, 0.0
    return stretch, number


def _find_usual(work_ns: Times) -> float:
    """Find the work of a step that most of the time is made of, rare long ones left out."""
    ordered = np.sort(work_ns)[::-1]
    covered = ordered * np.arange(1, len(ordered) + 1)
    first = min(len(ordered), max(_MIN_OPS, int(_FEW * len(ordered)))) - 1
    return float(ordered[first + int(covered[first:].argmax())])


def _describe(rounds: Rounds, chosen: NDArray[np.int64], span: LateSpan) -> Late:
    """Measure what ranks that are late cost the others."""
    own_ns, columns = rounds.own_ns[chosen], list(span.columns)
    others_ns = np.delete(own_ns, columns, axis=1).max(axis=1)
    lost_ns = np.maximum(own_ns[:, columns].min(axis=1) - others_ns, 0.0)
    # Between ops that follow directly, nobody is late, and somebody is the last.
    is_late = lost_ns >= _HALF * _find_usual(lost_ns)
    first = columns[int(np.median(own_ns[is_late][:, columns], axis=0).argmax())]
    return Late(
        tuple(rounds.ranks[column] for column in (first, *sorted({*columns} - {first}))),
        rounds.group,
        span.share_last,
        float(np.median(lost_ns[is_late])),
        _sum_once(lost_ns, rounds.is_carried[chosen]) / float(rounds.length_ns[chosen].sum()),
        float(rounds.offsets_ns[first]),
        rounds.is_sure,
        int(rounds.rows[chosen[is_late][-1], first]),
        int(is_late.sum()),
        int(rounds.rows[chosen[0], first]),
        int(rounds.rows[chosen[-1], first]),
    )


def _sum_once(lost_ns: Times, is_carried: NDArray[np.bool_]) -> float:
    """Sum what was lost; of rounds that were not waited for one by one, the most counts."""
    starts = np.flatnonzero(np.concatenate([[True], ~is_carried[1:]]))
    return float(np.maximum.reduceat(lost_ns, starts).sum())


def _judge_waits(alignment: Alignment) -> Late | None:
    """Find the rank whose device waits least, call by call: the others wait for it."""
    complete = (alignment.rows != ABSENT).all(axis=1)
    rows, keys = alignment.rows[complete], alignment.keys[complete]
    found: list[Late] = []
    # Without call sites, ops of all places of a step may be one call: then they are judged as one.
    for key in np.unique(keys[:, 0]).tolist():
        here = rows[(keys == key).all(axis=1)]
        # One that has become slow lately is not the last in most of the ops.
        tails = (_judge_call(alignment, here, count) for count in (_MAX_OPS, *_RECENT_OPS))
        late = next((one for one in tails if one is not None), None)
        found += [late] if late is not None else []
    return max(found, key=lambda late: late.lost_ns, default=None)


def _judge_call(alignment: Alignment, rows: NDArray[np.int64], count: int) -> Late | None:
    """Find the rank whose device waits least in the last ops of one call."""
    here = rows[-count:]
    if len(here) < _MIN_OPS or (count < _MAX_OPS and len(here) < count):
        return None
    found = find_least_waiting(alignment.table, here)
    if found is None:
        return None
    created_ns = alignment.table.created_ns[here].astype(np.float64)
    span_ns = float((created_ns[-1] - created_ns[0]).mean())
    share = min(1.0, found.lost_ns * len(here) / span_ns) if span_ns else 0.0
    if found.lost_ns < _MIN_LOST_NS or share < _MIN_LOST_SHARE:
        return None
    return Late(
        (alignment.ranks[found.column],),
        alignment.group,
        found.share_least,
        found.lost_ns,
        share,
        0.0,
        is_sure=True,
        row=int(here[-1, found.column]),
        count=len(here),
        first_row=int(here[0, found.column]) if count < _MAX_OPS else -1,
    )
