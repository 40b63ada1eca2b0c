"""The step from which on all steps of a job take longer.

The change is where the ranks of the step times differ most before and after (the statistic of
Pettitt's test for a change point). Times of steps have long tails, so medians and quantiles
decide, not means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]

# So many steps on each side; fewer are a phase of the program or of the machine.
_MIN_STEPS = 30
# The steps of the start, with compilation and caches that fill, are left out.
_START_STEPS = 5
_MIN_RATIO = 1.15
# Nearly all steps after the change are longer than nearly all before it.
_HIGH, _LOW = 90, 20
_PARTS = 4


@dataclass(frozen=True)
class Slowdown:
    """From ``place`` on, the median is ``after_ns``; before, it was ``before_ns``."""

    place: int
    before_ns: float
    after_ns: float


def find_slowdown(times_ns: Times) -> Slowdown | None:
    """Find from which step on all steps take longer, until the end.

    Args:
        times_ns: The time of each step.

    Returns:
        The change; None when there is none, or it is not clear.
    """
    known_ns = times_ns[_START_STEPS:]
    count = len(known_ns)
    if count < 2 * _MIN_STEPS:
        return None
    order = np.empty(count)
    order[np.argsort(known_ns, kind="stable")] = np.arange(count)
    excess = np.cumsum(order - (count - 1) / 2)
    middle = slice(_MIN_STEPS - 1, count - _MIN_STEPS)
    place = int(excess[middle].argmin()) + _MIN_STEPS
    before_ns, after_ns = known_ns[:place], known_ns[place:]
    usual_ns = float(np.median(before_ns))
    is_apart = np.percentile(after_ns, _LOW) > np.percentile(before_ns, _HIGH)
    lasts = all(
        np.median(part) >= _MIN_RATIO * usual_ns for part in np.array_split(after_ns, _PARTS)
    )
    if not (is_apart and lasts):
        return None
    return Slowdown(place + _START_STEPS, usual_ns, float(np.median(after_ns)))
