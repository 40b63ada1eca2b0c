"""Who came last to each collective, how far behind the others, and what that cost them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.collectives.clocks import Clocks, take_median
from whystuck.tracing.collectives.matched import GroupCalls, Matching

Real = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Where more members than this are missing, the last of those seen says little: one that left no
# trace may have been later still.
SEEN_SHARE = 0.75
# Arrivals that are closer than this are at one time: many traces have whole µs.
TIE_NS = 1_000.0
# Ends of one collective are no further apart than this, or than this share of its arrivals.
_TOGETHER_NS = 500_000.0
_TOGETHER_SHARE = 0.2
FEW_SEEN = "too many members left no trace to tell who came last"


@dataclass(frozen=True)
class Arrivals:
    """How the members of a group came to its collectives.

    Matrices have a row for each of ``group.rank`` and a column for each collective; what is absent
    is NaN. ``start`` and ``end`` are on the clock of the reference. ``last`` is the row of who came
    last, -1 where that is not known: members are missing, or several came at one time.
    ``held_ns`` is for how long that rank alone kept the others waiting: what they would gain if it
    came with the next latest. ``is_judged`` tells collectives in which members wait for each other
    and enough of them are seen.
    """

    group: GroupCalls
    start: Real
    end: Real
    seen: Whole
    last: Whole
    skew_ns: Real
    held_ns: Real
    wait_ns: Real
    transfer_ns: Real
    end_skew_ns: Real
    is_judged: Flags


def find_arrivals(matching: Matching, clocks: Clocks, group: GroupCalls) -> Arrivals:
    """Work out who came when to the collectives of a group.

    Args:
        matching: The matched calls.
        clocks: The clocks of ranks.
        group: The group.

    Returns:
        The arrivals. Transfer is the time from the last start to the end on the rank that came
        last, which no clock offset touches; where that rank is not known, the shortest time of
        any member.
    """
    start = clocks.align(matching, group, "start_ns")
    end = clocks.align(matching, group, "end_ns")
    seen = (~np.isnan(start)).sum(axis=0)
    every = np.arange(start.shape[1])
    late, latest, second = _find_last(start)
    skew = latest - _find_least(start)
    end_skew = -_find_least(-end) - _find_least(end)
    is_enough = _are_enough(group, seen)
    if not is_enough.all() and group.size > 1:
        matching.gaps[-1, group.name, FEW_SEEN] += int((~is_enough).sum())
    is_judged = matching.meets(group) & (seen > 1) & is_enough & _are_linked(clocks, group)
    if group.is_assumed:
        # That all ranks are its members is a guess, which the ends must bear out.
        is_judged &= end_skew <= np.maximum(_TOGETHER_NS, _TOGETHER_SHARE * skew)
    held = np.where(seen > 1, latest - second, 0.0)
    is_clear = is_judged & (held > TIE_NS)
    own = end - start
    return Arrivals(
        group=group,
        start=start,
        end=end,
        seen=seen,
        last=np.where(is_clear, late, -1),
        skew_ns=skew,
        held_ns=np.where(is_clear, held, 0.0),
        wait_ns=latest - start,
        transfer_ns=np.where(is_clear, own[late, every], _find_least(own)),
        end_skew_ns=end_skew,
        is_judged=is_judged,
    )


def _find_last(start: Real) -> tuple[Whole, Real, Real]:
    """Return for each collective the row that came last, its time, and that of the next latest."""
    filled = np.where(np.isnan(start), -np.inf, start)
    late, every = np.argmax(filled, axis=0), np.arange(start.shape[1])
    latest = filled[late, every]
    filled[late, every] = -np.inf
    return late, latest, filled.max(axis=0, initial=-np.inf)


def _find_least(values: Real) -> Real:
    least: Real = np.where(np.isnan(values), np.inf, values).min(axis=0, initial=np.inf)
    return least


def _are_enough(group: GroupCalls, seen: Whole) -> Flags:
    size = group.size if group.size > 0 else len(group.rank)
    enough: Flags = seen >= SEEN_SHARE * size
    return enough


def _are_linked(clocks: Clocks, group: GroupCalls) -> bool:
    return len(np.unique(clocks.part[group.rank])) <= 1


@dataclass(frozen=True)
class Blame:
    """What each rank of a `Matching` cost others and lost to others, over all collectives.

    ``caused_ns`` sums `Arrivals.held_ns`; ``peer_wait_ns`` sums, over all other members, how long
    they waited for this rank as the last one. Collectives that are not judged count for nothing.
    """

    times_last: Whole
    caused_ns: Real
    peer_wait_ns: Real
    suffered_ns: Real
    judged: Whole

    @classmethod
    def of(cls, count: int) -> Blame:
        """Return the blame of so many ranks before any collective."""
        whole = np.zeros((2, count), dtype=np.int64)
        real = np.zeros((3, count))
        return cls(whole[0], real[0], real[1], real[2], whole[1])

    def add(self, one: Arrivals) -> None:
        """Add the collectives of a group."""
        rank = one.group.rank
        waits = np.where(one.is_judged, one.wait_ns, np.nan)
        there = ~np.isnan(waits)
        self.suffered_ns[rank] += np.where(there, waits, 0.0).sum(axis=1)
        self.judged[rank] += there.sum(axis=1)
        known = one.last >= 0
        last, size = one.last[known], len(rank)
        self.times_last[rank] += np.bincount(last, minlength=size)
        self.caused_ns[rank] += np.bincount(last, one.held_ns[known], size)
        total = np.where(there, waits, 0.0).sum(axis=0)
        self.peer_wait_ns[rank] += np.bincount(last, total[known], size)


def measure_lateness(matching: Matching, arrivals: Arrivals, role: Whole) -> tuple[Real, Real]:
    """Measure how much later than its peers each rank came through its own doing.

    Peers are the members of the same role. A rank that came late because it had waited somewhere
    else did not need longer for itself: only the smaller of both counts, of how much later than
    the median of its peers it came, and how much longer than theirs its own way there took.

    Args:
        matching: The matched calls.
        arrivals: Those of one group.
        role: The role of each rank of the matching.

    Returns:
        For each rank and collective: the lateness of its own making in ns, not below 0; and how
        much longer the device worked for it. NaN where there is no peer or nothing is known.
    """
    group = arrivals.group
    own = matching.gather(group, "own_ns")
    work = matching.gather(group, "own_compute_ns")
    late = np.full(own.shape, np.nan)
    longer = np.full(own.shape, np.nan)
    for one in np.unique(role[group.rank]).tolist():
        mine = np.flatnonzero(role[group.rank] == one)
        if len(mine) < 2:  # noqa: PLR2004 - there is nobody to compare with
            continue
        behind = _compare(arrivals.start[mine])
        apart = _compare(np.where(own[mine] < 0, np.nan, own[mine]))
        # How it came to the first collective of a stream is not known.
        fresh = np.where(np.isnan(apart), behind, np.minimum(behind, apart))
        late[mine] = np.where(arrivals.is_judged, np.maximum(fresh, 0.0), np.nan)
        longer[mine] = _compare(np.where(work[mine] < 0, np.nan, work[mine]))
    return late, longer


def _compare(values: Real) -> Real:
    """Return how much more each has than the median of the others, column by column."""
    if len(values) > _FEW:
        # One more or less changes the median of many hardly.
        return values - take_median(values, axis=0)
    order = np.argsort(values, axis=0)
    place = np.argsort(order, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    # NaN are sorted to the end. Of what is left without one, the middle is found by its place.
    others = (~np.isnan(values)).sum(axis=0) - 1
    low, high = np.maximum((others - 1) // 2, 0), np.maximum(others // 2, 0)
    last = len(values) - 1
    below = np.take_along_axis(ordered, np.minimum(low + (place <= low), last), axis=0)
    above = np.take_along_axis(ordered, np.minimum(high + (place <= high), last), axis=0)
    return np.where(others > 0, values - (below + above) / 2, np.nan)


_FEW = 16
