"""The order of work in a stream, where one piece begins before the last one has ended.

Two things look alike in a trace. A kernel may begin in the last microseconds of the one before it
(programmatic dependent launch), or seem to, as times were rounded: then it waited for that one.
Or both ran side by side, as branches of a graph do: then it waited for one that had ended.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.critical.work import DeviceWork

# Whole numbers: int64, or int32 where rows of the trace are meant.
Rows = NDArray[Any]

# A kernel that waits for the one before it begins at most this long before that one ends, and
# before half of the shorter one is over.
_HEAD_START_NS = 10_000
# Times are written as microseconds with three digits behind the point, or, long ago, none.
_US, _ROUNDED_NS = 1_000, 2


def find_given_way(work: DeviceWork) -> Rows:
    """Return until when each piece kept others from beginning.

    That is its end, or the start of a piece which waited for it and began a little before: of its
    stream, or where the trace rounds times, of another stream of its device.

    Args:
        work: The work of a trace.
    """
    given_way = work.end.copy()
    pieces = np.flatnonzero(work.stream[1:] == work.stream[:-1])
    begun = work.start[pieces + 1]
    overlap = work.end[pieces] - begun
    lengths = work.end - work.start
    shorter = np.minimum(lengths[pieces], lengths[pieces + 1])
    waited = (overlap > 0) & (overlap <= _HEAD_START_NS) & (2 * overlap <= shorter)
    given_way[pieces[waited]] = begun[waited]
    rounded_ns = find_rounding(work)
    device = work.device[work.stream]
    for one in np.unique(device[device >= 0]).tolist():
        mine = np.flatnonzero(device == one)
        starts = np.sort(work.start[mine])
        place = np.searchsorted(starts, work.end[mine] - rounded_ns)
        begun = starts[np.minimum(place, len(starts) - 1)]
        fits = (begun < given_way[mine]) & (2 * (work.end[mine] - begun) <= lengths[mine])
        fits &= begun >= work.end[mine] - rounded_ns
        given_way[mine[fits]] = begun[fits]
    return given_way


def find_rounding(work: DeviceWork) -> int:
    """Return how much an end, which is a start and a length, may be off as they are rounded."""
    is_coarse = not ((work.start % _US).any() or (work.end % _US).any())
    return _US if is_coarse else _ROUNDED_NS


def find_stream_order(work: DeviceWork, given_way: Rows) -> tuple[Rows, Rows]:
    """Find for each piece the one in its stream that it waited for.

    That is the one before it, or where both ran side by side the last one that had ended.

    Args:
        work: The work of a trace.
        given_way: Until when each piece kept others from beginning.

    Returns:
        The pieces that were waited for, and those that waited.
    """
    behind = np.flatnonzero(work.stream[1:] == work.stream[:-1]) + 1
    before = behind - 1
    beside = np.flatnonzero(given_way[before] > work.start[behind])
    if len(beside):
        before[beside] = _find_ended(work, given_way, behind[beside])
        is_found = before >= 0
        before, behind = before[is_found], behind[is_found]
    return before, behind


def _find_ended(work: DeviceWork, given_way: Rows, pieces: Rows) -> Rows:
    """Return for some pieces the last one of their stream that had ended when they began, or -1."""
    zero = int(work.start.min())
    # Streams one after the other on one axis, each as long as all of the trace.
    span = int(given_way.max()) - zero + 1
    ends = given_way - zero + work.stream * span
    order = np.argsort(ends, kind="stable")
    wanted = work.start[pieces] - zero + work.stream[pieces] * span
    place = np.searchsorted(ends[order], wanted, side="right") - 1
    found = order[np.maximum(place, 0)]
    fits = (place >= 0) & (work.stream[found] == work.stream[pieces]) & (found < pieces)
    return np.where(fits, found, -1)
