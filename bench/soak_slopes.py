"""How fast figures of a long run grow, with an interval that long runs of memory deserve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCKS = 20
_NORMAL_97_5 = 1.96


@dataclass(frozen=True)
class Slope:
    """A growth an hour, and the ends of its interval of 95 %."""

    middle: float
    low: float
    high: float


def fit_slope(
    times_s: NDArray[np.float64], values: NDArray[np.float64], *, lowest: bool = False
) -> Slope:
    """Return the growth of a figure an hour.

    Samples beside each other are alike, so means of `BLOCKS` stretches stand for them, or the
    lowest of each: what a group has while it lives, and what a trace takes and gives back after
    some seconds, is no growth, and is seen more often the slower the machine is, while what is left
    behind is there at each look. The slope is that of Theil and Sen, the median over all pairs of
    blocks, and its interval the one that goes with Kendall's tau: nothing is assumed of the noise,
    and one jump, as when an allocator takes one more arena, is no growth, wherever it comes. 0
    where there are too few samples.
    """
    count = min(BLOCKS, len(times_s))
    if count < 4:
        return Slope(0.0, 0.0, 0.0)
    x = np.array([part.mean() for part in np.array_split(times_s, count)]) / 3600
    stand = np.min if lowest else np.mean
    y = np.array([stand(part) for part in np.array_split(values, count)])
    first, second = np.triu_indices(count, 1)
    slopes = np.sort((y[second] - y[first]) / (x[second] - x[first]))
    spread = _NORMAL_97_5 * np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, int(np.floor((len(slopes) - spread) / 2)))
    high = min(len(slopes) - 1, int(np.ceil((len(slopes) + spread) / 2)))
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))
