"""Joins the work of devices with the calls of the host that launched it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import UNKNOWN, TraceEvents
from whystuck.tracing.arrays.segments import look_up

Rows = NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max


def join_launches(events: TraceEvents, work: Rows, calls: Rows) -> Rows:
    """Find the call that launched each piece of work, by their correlation.

    Of a driver call inside a runtime call of the same correlation, the outer one counts. Where a
    correlation is used again, it is the last call that began before the work.

    Args:
        events: The events of the trace.
        work: Rows of work of devices.
        calls: Rows of calls that have a correlation.

    Returns:
        The row of a call for each row of work, -1 where the trace has none.
    """
    # A 0 that several calls have is no number of any of them.
    zeros = events.correlation[calls] == 0
    if np.count_nonzero(zeros) > 1:
        calls = calls[~zeros]
    if not len(calls):
        return np.full(len(work), UNKNOWN, dtype=np.int64)
    calls = calls[np.argsort(events.correlation[calls], kind="stable")]
    keys, wanted = events.correlation[calls], events.correlation[work]
    if (keys[1:] > keys[:-1]).all():
        place = look_up(keys, wanted)
        return np.where((place >= 0) & (wanted >= 0), calls[place], UNKNOWN)
    calls = calls[np.lexsort((events.start_ns[calls], keys))]
    calls = calls[_find_outer(events, calls)]
    place = _find_latest(events, work, calls)
    is_known = (events.correlation[calls[place]] == wanted) & (wanted >= 0)
    return np.where(is_known, calls[place], UNKNOWN)


def find_older(start: Rows, launches: Rows, stream: Rows) -> NDArray[np.bool_]:
    """Tell which work was launched before the trace began.

    Streams run their work in the order in which it was launched. So what has no launch in the trace
    and runs before the first work that has one is older than that.

    Args:
        start: When each piece of work began, in ns.
        launches: The row of the call that launched each, or -1.
        stream: The number of the stream of each, counted from 0 over all devices.

    Returns:
        A flag for each. Work on streams where nothing has a launch is compared with all others.
    """
    linked = launches >= 0
    if linked.all() or not linked.any():
        return np.zeros(len(start), dtype=np.bool_)
    first = np.full(int(stream.max()) + 1, _NEVER, dtype=np.int64)
    np.minimum.at(first, stream[linked], start[linked])
    first[first == _NEVER] = start[linked].min()
    is_older: NDArray[np.bool_] = ~linked & (start < first[stream])
    return is_older


def _find_outer(events: TraceEvents, calls: Rows) -> Rows:
    """Positions of calls, sorted by correlation and start, inside no other of their correlation."""
    _, group = np.unique(events.correlation[calls], return_inverse=True)
    start = events.start_ns[calls]
    # Ranks in place of times keep the sums small, so that one running maximum does for all groups.
    times, place = np.unique(np.r_[start, start + events.duration_ns[calls]], return_inverse=True)
    start_rank, end_rank = place[: len(calls)], place[len(calls) :]
    reach = np.maximum.accumulate(end_rank + group * len(times))
    is_inner = start_rank[1:] + group[1:] * len(times) < reach[:-1]
    return np.flatnonzero(~np.r_[False, is_inner])


def _find_latest(events: TraceEvents, work: Rows, calls: Rows) -> Rows:
    """Positions of the last call of the same correlation that began before each piece of work."""
    keys = np.unique(events.correlation[calls])
    times, place = np.unique(
        np.r_[events.start_ns[calls], events.start_ns[work]], return_inverse=True
    )
    size = len(times)
    group = np.searchsorted(keys, events.correlation[calls])
    wanted = np.minimum(np.searchsorted(keys, events.correlation[work]), len(keys) - 1)
    spots = group * size + place[: len(calls)]
    latest = np.searchsorted(spots, wanted * size + place[len(calls) :], side="right") - 1
    # Clocks of devices run a little beside those of hosts: work may seem to begin before its call.
    first = np.searchsorted(group, wanted)
    return np.maximum(latest, first)
