"""When a whole job became slower."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.diagnose.algorithms.times.own_times import Rounds
from whystuck.diagnose.algorithms.times.slowdown import Slowdown, find_slowdown
from whystuck.evidence.ops.collectives import Collectives

_HALF = 0.5


@dataclass(frozen=True)
class JobSlowdown:
    """The ranks of a group take ``after_ns`` for a step since ``row``; before, ``before_ns``.

    ``step`` is that of optimizers, -1 where they do not tell; ``phase`` is what grew: ``work`` of
    all ranks, or ``communication``.
    """

    group: GroupOps
    row: int
    step: int
    before_ns: float
    after_ns: float
    phase: str


def find_job_slowdown(table: Collectives, rounds: Iterable[Rounds]) -> JobSlowdown | None:
    """Find since when the steps of the largest group take longer.

    Args:
        table: All ops.
        rounds: What ranks took by themselves between ops.

    Returns:
        The change, None when there is none.
    """
    one = max(rounds, key=lambda each: (len(each.ranks), len(each.rows)), default=None)
    if one is None or not len(one.rows):
        return None
    _, first, step = np.unique(one.steps, return_index=True, return_inverse=True)
    length_ns, least_ns, transfer_ns = np.zeros((3, len(first)))
    np.add.at(length_ns, step, one.length_ns)
    np.add.at(least_ns, step, one.own_ns.min(axis=1))
    np.add.at(transfer_ns, step, _measure_transfers(table, one))
    found = find_slowdown(length_ns)
    # Where the fastest rank takes no longer than before, others are slow, not all.
    if found is None or not _explains(found, least_ns):
        return None
    row = int(one.rows[first[found.place], 0])
    return JobSlowdown(
        one.group,
        row,
        int(table.step[row]) if one.has_steps else -1,
        found.before_ns,
        found.after_ns,
        "communication" if _explains(found, transfer_ns) else "work",
    )


def _explains(found: Slowdown, times_ns: NDArray[np.float64]) -> bool:
    """Return whether a part of the steps has grown by half of what the steps have, or more."""
    before, after = times_ns[: found.place], times_ns[found.place :]
    grown_ns = float(np.median(after) - np.median(before))
    return grown_ns >= _HALF * (found.after_ns - found.before_ns)


def _measure_transfers(table: Collectives, rounds: Rounds) -> NDArray[np.float64]:
    """Return how long the ops of each round took the rank that came last to the first of them.

    One that comes last waits for nobody. The ops of a round are taken to be alike.
    """
    took_ns = table.completed_ns[rounds.rows] - table.created_ns[rounds.rows]
    took_ns = np.where(table.completed_ns[rounds.rows] > 0, took_ns, 0).min(axis=1)
    own = rounds.group.rows_by_rank[rounds.ranks[0]]
    places = np.searchsorted(own, rounds.rows[:, 0])
    return np.asarray(took_ns * np.diff(places, append=len(own)), dtype=np.float64)
