"""Unions of intervals of time, and what they have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


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
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    if not len(start):
        return Union(start, end)
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.r_[True, start[1:] > reach[:-1]])
    return Union(start[first], reach[np.r_[first[1:] - 1, len(start) - 1]])


def cover(union: Union, at: Times) -> Times:
    """Return how much of a union lies before each of some times, in ns."""
    if not len(union.start):
        return np.zeros(len(at), dtype=np.int64)
    before = np.r_[np.int64(0), np.cumsum(union.end - union.start)]
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
        group: The group of each, ascending.

    Returns:
        The running maximum, which begins anew with each group.
    """
    # Ranks in place of times keep the sums small, so that one running maximum does for all groups.
    times, place = np.unique(end, return_inverse=True)
    size = len(times)
    reach = np.maximum.accumulate(place + group * size)
    latest: Times = times[reach - group * size]
    return latest
