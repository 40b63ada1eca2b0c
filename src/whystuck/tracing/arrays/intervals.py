"""Unions of intervals of time, and what they have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.arrays.segments import sum_groups

Times = NDArray[np.int64]

_MOST = 2**62


@dataclass(frozen=True)
class Union:
    """Intervals [start, end) that neither overlap nor touch, in order of time; ns."""

    start: Times
    end: Times

    @property
    def length(self) -> int:
        """The time that they cover, in ns."""
        return int((self.end - self.start).sum())


def unite(start: Times, end: Times) -> Union:
    """Merge intervals that overlap or touch.

    Args:
        start: Where each begins, in ns.
        end: Where each ends, not before its start.

    Returns:
        The union; intervals of no length have no part in it where they touch no other.
    """
    if len(start) < 2:  # noqa: PLR2004 - nothing to merge
        return Union(start, end)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    is_first = np.ones(len(start), dtype=np.bool_)
    np.greater(start[1:], reach[:-1], out=is_first[1:])
    first = np.flatnonzero(is_first)
    return Union(start[first], reach[np.append(first[1:] - 1, len(start) - 1)])


def cover(union: Union, at: Times) -> Times:
    """Return how much of a union lies before each of some times, in ns."""
    if not len(union.start):
        return np.zeros(len(at), dtype=np.int64)
    before = np.zeros(len(union.start) + 1, dtype=np.int64)
    np.cumsum(union.end - union.start, out=before[1:])
    place = np.searchsorted(union.start, at, side="right")
    inside = np.maximum(union.end[np.maximum(place - 1, 0)] - at, 0)
    covered: Times = before[place] - np.where(place > 0, inside, 0)
    return covered


def overlap(one: Union, other: Union) -> int:
    """Return how much time two unions have in common, in ns."""
    return int((cover(one, other.end) - cover(one, other.start)).sum())


def reach_in_groups(end: Times, group: Times) -> Times:
    """Return the latest end up to each of some intervals, within their groups.

    Args:
        end: Where each ends, in ns; sorted by group, and by start within a group.
        group: The number of the group of each, from 0, ascending.

    Returns:
        The running maximum, which begins anew with each group.
    """
    if not len(end) or group[-1] == group[0]:
        return np.maximum.accumulate(end)
    # One running maximum does for all groups, as each lies above the one before.
    low = int(end.min())
    size = int(end.max()) - low + 1
    if size < _MOST // (int(group[-1]) + 1):
        lifted: Times = np.maximum.accumulate(end - low + group * size)
        return lifted - group * size + low
    # Times too far apart for that have their ranks in place of them.
    times, place = np.unique(end, return_inverse=True)
    reach = np.maximum.accumulate(place + group * len(times))
    latest: Times = times[reach - group * len(times)]
    return latest


def measure_groups(start: Times, end: Times, group: Times, size: int) -> Times:
    """Return how much time each group of intervals covers, in ns.

    Args:
        start: Where each begins, in ns; sorted by group, and by start within a group.
        end: Where each ends, not before its start.
        group: The number of the group of each, from 0, ascending.
        size: The number of groups.

    Returns:
        The length of the union of each group, 0 where it has no intervals.
    """
    if not len(start):
        return np.zeros(size, dtype=np.int64)
    reach = reach_in_groups(end, group)
    is_new = np.ones(len(start), dtype=np.bool_)
    np.greater(start[1:], reach[:-1], out=is_new[1:])
    if group[0] != group[-1]:
        is_new[1:] |= group[1:] != group[:-1]
    first = np.flatnonzero(is_new)
    length = reach[np.r_[first[1:] - 1, len(start) - 1]] - start[first]
    return sum_groups(length, group[first], size)
