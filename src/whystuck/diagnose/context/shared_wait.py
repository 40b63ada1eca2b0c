"""How long the ranks of a job wait in ops when no rank is late throughout: for peers, or data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from whystuck.diagnose.algorithms.times.own_times import Rounds
from whystuck.diagnose.policy import Policy
from whystuck.evidence.sections import Communication

# Fewer steps than this say nothing about who is late throughout.
_MIN_ROUNDS = 20
# Ranks that cause so much of the waits are told of, although none is late throughout.
_MOST = 0.75
# So many ranks are listed.
_MAX_LISTED = 8
# In a shorter time, or in fewer steps unless they are long, one delay of a rank is a third of all:
# 3 steps of a small job take 0.04 s, and 10 to 100 times as long where processors are busy.
_MIN_SPAN_S, _LONG_SPAN_S = 1.0, 60.0
_NS_PER_S = 1e9


@dataclass(frozen=True)
class SharedWait:
    """The share of its time in which ``rank``, which waits most, waits in ops.

    ``for_peers`` is the part of it before the last rank came. ``caused`` is which share of the
    waits ranks caused in the ops that can be compared, the largest first, ``times`` how often they
    were the last, of ``rounds`` in all; both are empty when there are too few.
    """

    rank: int
    share: float
    for_peers: float
    caused: dict[int, float] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    rounds: int = 0

    @property
    def main_causes(self) -> tuple[int, ...]:
        """The ranks that cause most of the waits, if they are no more than half of those known."""
        chosen: list[int] = []
        for rank in self.caused:
            chosen.append(rank)
            if sum(self.caused[one] for one in chosen) >= _MOST:
                break
        return tuple(chosen) if 2 * len(chosen) <= len(self.times) else ()

    @property
    def is_for_peers(self) -> bool:
        """Whether the rank waits for others more than for data."""
        return 2 * self.for_peers >= self.share


def find_shared_wait(
    communication: Communication, rounds: Iterable[Rounds], policy: Policy
) -> SharedWait | None:
    """Find whether ranks wait for a large share of the time.

    Args:
        communication: What ops cost; the waits of asynchronous ops are not among that.
        rounds: What ranks took by themselves.
        policy: The thresholds.

    Returns:
        The wait, None when it is short, or the job is.
    """
    if not _can_judge(communication):
        return None
    rank, share = communication.exposed_rank, communication.exposed_most
    for_peers = communication.exposed_for_peers
    known = [one for one in rounds if one.is_sure]
    others = _share_waits(known, communication.span_s * _NS_PER_S)
    longest = max(others, key=lambda one: others[one], default=-1)
    if longest >= 0 and others[longest] > share:
        rank, share, for_peers = longest, others[longest], others[longest]
    if share < policy.wait_share:
        return None
    return SharedWait(rank, share, for_peers, *_list_causes(known))


def _can_judge(communication: Communication) -> bool:
    """Return whether there was enough of the job to tell what is usual in it."""
    count = max((row.calls for row in communication.rows), default=0)
    span_s = communication.span_s
    return span_s >= _LONG_SPAN_S or (span_s >= _MIN_SPAN_S and count >= _MIN_ROUNDS)


def _share_waits(rounds: Iterable[Rounds], span_ns: float) -> dict[int, float]:
    """Return for which share of the time each rank waits for others, asynchronous ops included."""
    waits: dict[int, float] = {}
    for one in rounds:
        lost_ns = (one.own_ns.max(axis=1, keepdims=True) - one.own_ns).sum(axis=0)
        for rank, rank_ns in zip(one.ranks, lost_ns.tolist(), strict=True):
            waits[rank] = waits.get(rank, 0.0) + rank_ns
    return {rank: min(1.0, waits[rank] / span_ns) for rank in waits} if span_ns else {}


def _list_causes(rounds: Iterable[Rounds]) -> tuple[dict[int, float], dict[int, int], int]:
    """List for whom most of the others waited, for how long and how often, most first."""
    caused: dict[int, float] = {}
    times: dict[int, int] = {}
    count = 0
    for one in rounds:
        own_ns = one.own_ns[one.is_known]
        ordered = np.sort(own_ns, axis=1)
        lost_ns = ordered[:, -1] - ordered[:, (ordered.shape[1] - 1) // 2]
        last = own_ns.argmax(axis=1)
        count += len(own_ns)
        for column, rank in enumerate(one.ranks):
            mine = lost_ns[last == column]
            caused[rank] = caused.get(rank, 0.0) + float(mine.sum())
            times[rank] = times.get(rank, 0) + len(mine)
    total = sum(caused.values())
    if count < _MIN_ROUNDS or not total:
        return {}, {}, count
    order = sorted(caused, key=lambda rank: -caused[rank])[:_MAX_LISTED]
    return {rank: caused[rank] / total for rank in order}, times, count
