"""Who comes last to the collectives of a group, again and again, whatever the clocks say.

On a host, only the time at which each rank issued an op is needed. Clocks of hosts differ by a
constant that is taken out before ranks are compared: from the times at which an op was over, which
is one moment for all, else from ops that all ranks issued directly after another one, so that
nobody can be late. On a device, `waiting_times` tells more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.diagnose.algorithms.alignment import ABSENT, Alignment, align
from whystuck.diagnose.algorithms.groups import GroupOps
from whystuck.diagnose.algorithms.progress import list_ranks, slice_rank
from whystuck.diagnose.algorithms.waiting_times import find_least_waiting, measure_waits
from whystuck.evidence.collectives import Collectives

_NS_PER_MS = 1e6
# Fewer ops than this say nothing about a habit; more than that add nothing.
_MIN_OPS = 10
_MAX_OPS = 500
# Ops that a rank issues this soon after the one before follow it directly.
_AT_ONCE_NS = 3_000_000
_HALF = 0.5
_MIN_SHARE_LAST = 0.8
_MIN_LOST_NS = 5_000_000
_MIN_LOST_SHARE = 0.03


@dataclass(frozen=True)
class Late:
    """A rank that comes last.

    ``share_last`` is the share of ops to which it came last, ``lost_ns`` the median time for which
    the others waited for it alone, ``lost_share`` the share of the whole time that makes.
    ``is_sure`` is false when its clock may be the reason. ``row`` is one of its ops, ``count`` how
    many were compared.
    """

    rank: int
    group: GroupOps
    share_last: float
    lost_ns: float
    lost_share: float
    offset_ns: float
    is_sure: bool
    row: int
    count: int


def find_late(
    table: Collectives,
    groups: Iterable[GroupOps],
    node_by_rank: Mapping[int, str],
    device_ranks: frozenset[int],
) -> tuple[Late, ...]:
    """Find ranks that are late to the collectives of their peers.

    Ranks are compared with ranks of one role only, those that make the same calls.

    Args:
        table: All ops.
        groups: The groups of the table.
        node_by_rank: The node of each rank, where known: ranks of one node share a clock.
        device_ranks: Ranks whose ops run on a device, while their hosts may run ahead.

    Returns:
        At most one rank a group; none that is itself held up by another one.
    """
    roles = _find_roles(table)
    found = []
    for group in groups:
        ranks = group.rows_by_rank
        is_whole = len(ranks) > 1 and group.members <= set(ranks)
        if is_whole and len({roles[rank] for rank in ranks}) == 1:
            nodes = {node_by_rank.get(rank) for rank in ranks}
            alignment = align(table, group)
            if device_ranks.isdisjoint(ranks):
                late = _judge(alignment, is_one_clock=len(nodes) == 1 and None not in nodes)
            else:
                late = _judge_waits(alignment)
            if late is not None:
                found.append(late)
    if not device_ranks.isdisjoint(late.rank for late in found):
        return _keep_root(table, found)
    return tuple(late for late in found if not _is_held_up(late, found))


def _keep_root(table: Collectives, found: Sequence[Late]) -> tuple[Late, ...]:
    """Keep the rank that waits least of all, by what it makes others wait, if it is late at all.

    One that is late to a group because it waited in another one has waited as long as its peers.
    """
    ranks = frozenset().union(*(late.group.members for late in found))
    waits = measure_waits(table, ranks)
    root = min(waits, key=lambda rank: waits[rank].total_ns, default=None)
    mine = [late for late in found if late.rank == root]
    if root is None or not mine:
        return ()
    late = max(mine, key=lambda late: late.lost_ns)
    least_ns = _HALF * late.lost_ns * late.count
    others = [waits[rank] for rank in waits if rank != root]
    return (late,) if all(waits[root].is_below(one, least_ns) for one in others) else ()


def _find_roles(table: Collectives) -> dict[int, bytes]:
    """Find what calls each rank makes, sizes left out."""
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
        roles[rank] = np.unique(calls + op_by_form[table.form[own]]).tobytes()
    return roles


def _is_held_up(late: Late, found: Iterable[Late]) -> bool:
    """Tell whether a rank is late because a member of another group of its is."""
    return any(
        other.rank != late.rank
        and late.rank in other.group.members
        and len(other.group.rows_by_rank[other.rank]) >= len(late.group.rows_by_rank[late.rank])
        for other in found
    )


def _judge(alignment: Alignment, *, is_one_clock: bool) -> Late | None:
    rows = alignment.rows
    rows = rows[(rows != ABSENT).all(axis=1)][-_MAX_OPS:]
    if len(rows) < _MIN_OPS:
        return None
    table = alignment.table
    created_ns = table.created_ns[rows].astype(np.float64)
    if not created_ns.all():
        return None
    created_ns -= created_ns.min()
    gaps_ns = np.diff(created_ns, axis=0)
    at_once = np.concatenate([[False], _find_at_once(gaps_ns)])
    offsets_ns = None if is_one_clock else _find_offsets(table, rows, created_ns, at_once)
    judged = ~at_once
    judged[0] = False
    if judged.sum() < _MIN_OPS - 1:
        return None
    times_ns = created_ns if offsets_ns is None else created_ns - offsets_ns
    ordered = np.sort(times_ns, axis=1)
    last = times_ns.argmax(axis=1)
    lost_ns = ordered[:, -1] - ordered[:, -2]
    counts = np.bincount(last[judged & (lost_ns > _MIN_LOST_NS)], minlength=rows.shape[1])
    column = int(counts.argmax())
    share = float(counts[column] / judged.sum())
    mine = lost_ns[judged & (last == column)]
    step_ns = float(np.median(gaps_ns.max(axis=1)[judged[1:]]))
    if share < _MIN_SHARE_LAST or not len(mine):
        return None
    median_ns = float(np.median(mine))
    is_sure = is_one_clock or offsets_ns is not None
    # Nobody can be later than the time that passed since all were together.
    if median_ns < max(_MIN_LOST_NS, _MIN_LOST_SHARE * step_ns) or median_ns > 1.5 * step_ns:
        return None
    span_ns = float(created_ns.max())
    return Late(
        alignment.ranks[column],
        alignment.group,
        share,
        median_ns,
        min(1.0, float(mine.sum() / span_ns)) if span_ns else 0.0,
        0.0 if offsets_ns is None else float(offsets_ns[column]),
        is_sure,
        int(rows[judged & (last == column)][-1, column]),
        int(judged.sum()),
    )


def _judge_waits(alignment: Alignment) -> Late | None:
    """Find the rank whose device waits least, call by call: the others wait for it."""
    complete = (alignment.rows != ABSENT).all(axis=1)
    rows, keys = alignment.rows[complete], alignment.keys[complete]
    best: Late | None = None
    # Without call sites, ops of all places of a step may be one call: then they are judged as one.
    for key in np.unique(keys[:, 0]).tolist():
        here = rows[(keys == key).all(axis=1)][-_MAX_OPS:]
        if len(here) < _MIN_OPS:
            continue
        found = find_least_waiting(alignment.table, here)
        if found is None:
            continue
        created_ns = alignment.table.created_ns[here].astype(np.float64)
        span_ns = float((created_ns[-1] - created_ns[0]).mean())
        share = min(1.0, found.lost_ns * len(here) / span_ns) if span_ns else 0.0
        if found.lost_ns < _MIN_LOST_NS or share < _MIN_LOST_SHARE:
            continue
        if best is None or found.lost_ns > best.lost_ns:
            best = Late(
                alignment.ranks[found.column],
                alignment.group,
                found.share_least,
                found.lost_ns,
                share,
                0.0,
                is_sure=True,
                row=int(here[-1, found.column]),
                count=len(here),
            )
    return best


def _find_at_once(gaps_ns: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Find ops that every rank issued directly after the one before.

    The time between two ops of a rank is what it waited in the first, and what it did between
    them. Where a few ranks have no such time at all, they came last to the first op, and the others
    waited for them; all went on together. Where most have none, the others worked between.
    """
    share = (gaps_ns < _AT_ONCE_NS).mean(axis=1)
    return np.asarray((share == 1) | ((share > 0) & (share < _HALF)))


def _find_offsets(
    table: Collectives,
    rows: NDArray[np.int64],
    created_ns: NDArray[np.float64],
    at_once: NDArray[np.bool_],
) -> NDArray[np.float64] | None:
    """Estimate by how much the clock of each rank is ahead; None when nothing tells."""
    completed_ns = table.completed_ns[rows]
    if completed_ns.all():
        shared = completed_ns.astype(np.float64)
    elif at_once.any():
        shared = created_ns[at_once]
    else:
        return None
    middle = np.median(shared, axis=1, keepdims=True)
    return np.asarray(np.median(shared - middle, axis=0), dtype=np.float64)
