"""Figures of groups of values, all groups at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Real = NDArray[np.float64]


def sum_groups(values: Whole, group: Whole, size: int) -> Whole:
    """Add up whole numbers by group, exactly.

    Args:
        values: Whole numbers.
        group: The group of each, from 0 to ``size`` - 1.
        size: The number of groups.

    Returns:
        A sum for each group, 0 where it has no values.
    """
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, group, values)
    return sums


def find_quantiles(
    values: Whole, group: Whole, size: int, shares: Sequence[float]
) -> tuple[Whole, ...]:
    """Find quantiles of each group, between two values by linear interpolation.

    Args:
        values: Whole numbers.
        group: The group of each, from 0 to ``size`` - 1.
        size: The number of groups.
        shares: Which quantiles, from 0 to 1.

    Returns:
        For each share a value for each group, rounded to a whole number; -1 where it is empty.
    """
    ordered = values[np.lexsort((values, group))]
    count = np.bincount(group, minlength=size)
    first = np.cumsum(count) - count
    return tuple(_pick(ordered, first, count, share) for share in shares)


def _pick(ordered: Whole, first: Whole, count: Whole, share: float) -> Whole:
    picked = np.full(len(count), -1, dtype=np.int64)
    some = count > 0
    place = (count[some] - 1) * share
    low = np.floor(place).astype(np.int64)
    high = np.ceil(place).astype(np.int64)
    below, above = ordered[first[some] + low], ordered[first[some] + high]
    picked[some] = below + np.rint((above - below) * (place - low)).astype(np.int64)
    return picked
