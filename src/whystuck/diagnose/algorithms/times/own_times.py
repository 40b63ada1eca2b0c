"""How long each rank takes by itself from one op of a group to the next.

In an op all members wait for the last one, so that all go on from its arrival together. What a rank
takes from there to its next op is its own time, if what it waited in other groups is left out. A
rank that is late to the first op of a chain is late to that one alone: in the ops that follow
directly, nobody has work of his own.

Asynchronous ops are not waited for one by one. Ops to which a rank came before all had come to the
one before belong together: a *round* ends with the last of them. The reductions of one backward
pass are waited for at its end alone: who is late to the first is late to all of them, and that
counts once. Passes in which a rank is late by the same time look like one: too little counts then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.diagnose.algorithms.ops.alignment import ABSENT, align
from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.evidence.ops.collectives import Collectives

Times = NDArray[np.float64]
Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]

# More ops of a group than this add nothing.
_MAX_OPS = 4000
# Ops that a rank issues this soon after the one before follow it directly.
_AT_ONCE_NS = 3_000_000
# Clocks of hosts are known so well.
_CLOCK_SLACK_NS = 3_000_000.0
_HALF = 0.5
_REDUCES = "all_reduce"
# Fewer steps than this say nothing about steps.
_MIN_STEPS = 10
# The period of calls is the smallest distance at which this share of them is repeated: what a rank
# does after every fifth step does not make five steps one.
_REPEATED = 0.6


@dataclass(frozen=True)
class Rounds:
    """The rounds of one group, a line for each, a column for each of ``ranks``.

    ``rows`` is the first op of each round, ``own_ns`` the own time of each rank before the end of
    it, ``steps`` the number of the step that it is of. ``is_known`` is false where ranks did not
    come from the same place of the program, or did something between whose wait is not known.
    ``offsets_ns`` is by how much clocks are ahead; ``is_sure`` is false when that is not known.
    ``length_ns`` is the time from the end of the round before to that of each round. Ranks did not
    wait for that one where ``is_carried``: what they are late by is the same.
    ``has_steps`` is whether optimizers tell the steps; else they are repeated calls.
    """

    group: GroupOps
    ranks: tuple[int, ...]
    rows: Rows
    own_ns: Times
    steps: Rows
    is_known: Flags
    offsets_ns: Times
    is_sure: bool
    length_ns: Times
    is_carried: Flags
    has_steps: bool = False


@dataclass(frozen=True)
class _Lines:
    """Ops of a group to which all members came: rows, when they came, whether from one place."""

    group: GroupOps
    ranks: tuple[int, ...]
    rows: Rows
    arrived_ns: Times
    keys: Rows
    offsets_ns: Times
    is_one_clock: bool
    is_sure: bool


def measure_own_times(
    table: Collectives,
    groups: Iterable[GroupOps],
    node_by_rank: Mapping[int, str],
    *,
    leaves_out_transfers: bool = False,
) -> tuple[Rounds, ...]:
    """Measure what ranks take by themselves between the ops of their groups.

    Args:
        table: All ops.
        groups: Groups whose ops run on hosts.
        node_by_rank: The node of each rank, where known: ranks of one node share a clock.
        leaves_out_transfers: Whether ops are left out up to their ends on each rank, not only up to
            the arrival of the last one: over a slow link, not all are over at one moment.

    Returns:
        The rounds of each group that all members tell of.
    """
    found = [lines for group in groups if (lines := _lay_out(table, group, node_by_rank))]
    if not found:
        return ()
    waited_ns = np.zeros(len(table))
    is_unknown = np.ones(len(table), dtype=np.bool_)
    for lines in found:
        gone_ns = _find_gone(table, lines, leaves_out_transfers=leaves_out_transfers)
        waited_ns[lines.rows] = gone_ns - lines.arrived_ns
        is_unknown[lines.rows] = False
    waited = _Sums(waited_ns), _Sums(is_unknown)
    return tuple(_measure(table, lines, waited_ns, waited) for lines in found)


def _find_gone(table: Collectives, lines: _Lines, *, leaves_out_transfers: bool) -> Times:
    """Return from when on ranks that came to ops are counted as on their own again."""
    last_ns = np.broadcast_to(lines.arrived_ns.max(axis=1, keepdims=True), lines.arrived_ns.shape)
    if not leaves_out_transfers:
        return last_ns
    took_ns = table.completed_ns[lines.rows] - table.created_ns[lines.rows]
    return np.asarray(np.maximum(last_ns, lines.arrived_ns + took_ns))


class _Sums:
    """Sums of a column between two rows of one rank."""

    def __init__(self, column: Times | Flags) -> None:
        self._sums = np.concatenate([[0.0], np.cumsum(column, dtype=np.float64)])

    def between(self, first: Rows, last: Rows) -> Times:
        """Return the sum of what lies between two rows, both left out."""
        return np.asarray(self._sums[last] - self._sums[first + 1])


def _lay_out(table: Collectives, group: GroupOps, node_by_rank: Mapping[int, str]) -> _Lines | None:
    ranks = group.rows_by_rank
    if len(ranks) < 2 or not group.members <= set(ranks):  # noqa: PLR2004 - nobody to wait for
        return None
    alignment = align(table, group)
    is_whole = (alignment.rows != ABSENT).all(axis=1)
    rows = alignment.rows[is_whole][-_MAX_OPS:]
    if not len(rows) or not table.created_ns[rows].all():
        return None
    keys = alignment.keys[is_whole][-_MAX_OPS:]
    arrived_ns = (table.created_ns[rows] - table.created_ns[rows].min()).astype(np.float64)
    nodes = {node_by_rank.get(rank) for rank in ranks}
    is_one_clock = len(nodes) == 1 and None not in nodes
    offsets_ns = None if is_one_clock else _find_offsets(table, rows, arrived_ns)
    is_sure = is_one_clock or offsets_ns is not None
    if offsets_ns is None:
        offsets_ns = np.zeros(len(ranks))
    return _Lines(
        group,
        alignment.ranks,
        rows,
        arrived_ns - offsets_ns,
        keys,
        offsets_ns,
        is_one_clock,
        is_sure,
    )


def _measure(
    table: Collectives, lines: _Lines, waited_ns: Times, waited: tuple[_Sums, _Sums]
) -> Rounds:
    arrived_ns, rows = lines.arrived_ns, lines.rows
    last_ns = np.maximum.accumulate(arrived_ns.max(axis=1))
    slack_ns = 0.0 if lines.is_one_clock else _CLOCK_SLACK_NS
    begins = arrived_ns[1:].min(axis=1) >= last_ns[:-1] - slack_ns
    starts = np.flatnonzero(np.concatenate([[True], begins]))
    ends = np.append(starts[1:], len(rows)) - 1
    before, after = rows[ends[:-1]], rows[ends[1:]]
    # What is waited in the ops of a round itself is not waited one by one.
    inside_ns = np.add.reduceat(waited_ns[rows], starts, axis=0)[1:] - waited_ns[after]
    elsewhere_ns = waited[0].between(before, after) - inside_ns
    # Where transfers count as waits, a rank is on its own from its own end of the round before.
    gone_ns = np.maximum(arrived_ns[ends[:-1]] + waited_ns[before], last_ns[ends[:-1], None])
    own_ns = arrived_ns[ends[1:]] - gone_ns - elsewhere_ns
    keys = lines.keys
    is_alike = np.logical_and.reduceat((keys == keys[:, :1]).all(axis=1), starts)[1:]
    is_known = is_alike & (waited[1].between(before, after) == 0).all(axis=1)
    steps, has_steps = _number_steps(table, after[:, 0], keys[starts[1:], 0])
    return Rounds(
        lines.group,
        lines.ranks,
        rows[starts[1:]],
        np.maximum(own_ns, 0),
        steps,
        is_known,
        lines.offsets_ns,
        lines.is_sure,
        np.diff(last_ns[ends]),
        _find_carried_on(table, lines)[starts[1:] - 1],
        has_steps,
    )


def _find_carried_on(table: Collectives, lines: _Lines) -> Flags:
    """Find the reductions that ranks issued without having waited for the one before.

    Both are asynchronous, of one step, and issued in one place. By how much ranks come apart grows
    less from one to the next than they are apart: had they waited, they would have gone on
    together. That must hold for most of a place, and not be refuted where it is in question.
    """
    arrived_ns, rows, keys = lines.arrived_ns, lines.rows, lines.keys
    if not len(table.is_async) or len(np.unique(table.step[rows])) < _MIN_STEPS:
        return np.zeros(len(rows) - 1, dtype=np.bool_)
    reduces = np.array([form.op == _REDUCES for form in table.forms], dtype=np.bool_)
    is_part = np.asarray((table.is_async[rows] & reduces[table.form[rows]]).all(axis=1))
    is_next = np.asarray(is_part[1:] & is_part[:-1] & (keys[1:] == keys[:-1]).all(axis=1))
    is_next &= (np.diff(table.step[rows], axis=0) == 0).all(axis=1)
    apart_ns = np.ptp(arrived_ns[1:], axis=1)
    grown_ns = np.ptp(np.diff(arrived_ns, axis=0), axis=1)
    is_clear = np.maximum(apart_ns, grown_ns) >= _AT_ONCE_NS
    is_kept = np.zeros(len(is_next), dtype=np.bool_)
    first_keys = keys[1:, 0]
    for key in np.unique(first_keys[is_next]).tolist():
        here = is_next & (first_keys == key)
        clear = here & is_clear
        if clear.any() and np.median(grown_ns[clear]) < _HALF * np.median(apart_ns[clear]):
            is_kept |= here
    return np.asarray(is_kept & ~(is_clear & (grown_ns >= _HALF * apart_ns)))


def _number_steps(table: Collectives, rows: Rows, keys: Rows) -> tuple[Rows, bool]:
    """Number the steps that rounds are of: by the steps of optimizers, else by repeated calls."""
    if len(table.step):
        marks = table.step[rows]
        if len(np.unique(marks)) >= _MIN_STEPS:
            return np.asarray(np.cumsum(np.diff(marks, prepend=marks[:1]) != 0)), True
    for period in range(1, len(keys) // _MIN_STEPS + 1):
        if (keys[period:] == keys[:-period]).mean() >= _REPEATED:
            return np.asarray(np.arange(len(keys)) // period), False
    return np.arange(len(keys)), False


def _find_offsets(table: Collectives, rows: Rows, arrived_ns: Times) -> Times | None:
    """Estimate by how much the clock of each rank is ahead; None when nothing tells."""
    completed_ns = table.completed_ns[rows]
    at_once = _find_at_once(np.diff(arrived_ns, axis=0))
    if completed_ns.all():
        shared = (completed_ns - completed_ns.min()).astype(np.float64)
    elif at_once.any():
        shared = arrived_ns[1:][at_once]
    else:
        return None
    middle = np.median(shared, axis=1, keepdims=True)
    return np.asarray(np.median(shared - middle, axis=0), dtype=np.float64)


def _find_at_once(gaps_ns: Times) -> Flags:
    """Find ops that every rank issued directly after the one before.

    The time between two ops of a rank is what it waited in the first, and what it did between
    them. Where a few ranks have no such time at all, they came last to the first op, and the others
    waited for them; all went on together. Where most have none, the others worked between.
    """
    share = (gaps_ns < _AT_ONCE_NS).mean(axis=1)
    return np.asarray((share == 1) | ((share > 0) & (share < _HALF)))
