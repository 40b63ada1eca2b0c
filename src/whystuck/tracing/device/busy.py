"""For how long work of which classes ran in each of some places: devices, or streams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.arrays.intervals import Times, measure_groups
from whystuck.tracing.arrays.segments import order_in_groups
from whystuck.tracing.classes import KernelClass

_ALL = (1 << len(KernelClass)) - 1


def bit(*kinds: KernelClass) -> int:
    """The set of some classes, as a number."""
    return sum(1 << kind for kind in kinds)


# For each set of classes, whether a class is one of it.
_IS_ONE = np.array([[one >> kind & 1 for kind in KernelClass] for one in range(_ALL + 1)]) > 0

COMPUTE, COMM, MEMORY = (bit(kind) for kind in KernelClass)


@dataclass(frozen=True)
class Busy:
    """Times in ns, a value a place.

    ``any_of`` has a row for each set of classes: how long work of any of them ran. ``first`` is the
    start of the first work of a place, ``last`` the end of its last, ``count`` how many there are.
    """

    any_of: NDArray[np.int64]
    first: Times
    last: Times
    count: Times

    def __len__(self) -> int:
        return len(self.count)

    @property
    def wall_ns(self) -> Times:
        """From the first start to the last end."""
        return self.last - self.first

    @property
    def busy_ns(self) -> Times:
        """The time in which any work ran."""
        busy: Times = self.any_of[_ALL]
        return busy

    def only(self, kinds: int) -> Times:
        """The time in which work of all classes of a set ran, and of no other class."""
        time = np.zeros(len(self), dtype=np.int64)
        # Time in which nothing but classes of a smaller set ran, by inclusion and exclusion.
        for part in range(1, _ALL + 1):
            if part & ~kinds == 0:
                within = self.busy_ns - self.any_of[_ALL & ~part]
                odd = (kinds & ~part).bit_count() % 2
                time += -within if odd else within
        return time

    @property
    def overlap_ns(self) -> Times:
        """The time in which work communicated and other work computed."""
        overlap: Times = self.any_of[COMM] + self.any_of[COMPUTE] - self.any_of[COMM | COMPUTE]
        return overlap


def measure_busy(
    start: Times, end: Times, classes: NDArray[np.uint8], place: Times, size: int
) -> Busy:
    """Measure how long work ran in each place.

    Args:
        start: When each piece of work began, in ns.
        end: When it ended.
        classes: Its `KernelClass`.
        place: The number of its place, from 0 to ``size`` - 1.
        size: The number of places, each of which has work.

    Returns:
        The times.
    """
    order = order_in_groups(start, place)
    start, end, place, kinds = start[order], end[order], place[order], classes[order]
    there = sum(1 << kind for kind in KernelClass if (kinds == kind).any())
    any_of = np.zeros((_ALL + 1, size), dtype=np.int64)
    for chosen in range(1, _ALL + 1):
        if chosen & ~there:
            # Made before, as it is the smaller number.
            any_of[chosen] = any_of[chosen & there]
        elif chosen == there:
            any_of[chosen] = measure_groups(start, end, place, size)
        else:
            rows = np.flatnonzero(_IS_ONE[chosen][kinds])
            any_of[chosen] = measure_groups(start[rows], end[rows], place[rows], size)
    count = np.bincount(place, minlength=size)
    first = np.cumsum(count) - count
    last = np.maximum.reduceat(end, first) if size else end
    return Busy(any_of, start[first], last, count)
