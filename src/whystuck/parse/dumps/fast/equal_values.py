"""Numbers that stand for values, and finding the first of those that are alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BUCKET_BITS = 16
_TABLE = 1 << _BUCKET_BITS
_SHIFTS = (48, 32, 16)
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(29)


def mix(total: NDArray[np.uint64], value: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """Add values to numbers that stand for the values before them.

    Args:
        total: The numbers so far.
        value: What to add to each.

    Returns:
        Numbers whose upper bits are well mixed.
    """
    mixed = (total ^ value) * _PRIME
    return mixed ^ (mixed >> _HALF)


def find_first_alike(
    values: NDArray[np.uint64], owners: NDArray[np.intp] | None = None
) -> NDArray[np.intp]:
    """Tell for each value where it stands for the first time.

    A table that is filled from the end gives the first one of each bucket; few values share one.

    Args:
        values: Numbers that stand for values.
        owners: Small numbers of what they belong to: values of two owners are never alike.

    Returns:
        A place for each of them.
    """
    values = mix(values, np.uint64(0))
    if owners is not None:
        values = mix(values, owners.astype(np.uint64))
    first: NDArray[np.intp] = np.zeros(len(values), dtype=np.intp)
    table = np.empty(_TABLE, dtype=np.intp)
    left = np.arange(len(values))
    for shift in _SHIFTS:
        if len(left) == 0:
            return first
        some = values[left]
        bucket = ((some >> np.uint64(shift)) & np.uint64(_TABLE - 1)).astype(np.intp)
        table[bucket[::-1]] = left[::-1]
        found = table[bucket]
        same = values[found] == some
        if same.all():
            first[left] = found
            return first
        first[left[same]] = found[same]
        left = left[~same]
    _values, places, inverse = np.unique(values[left], return_index=True, return_inverse=True)
    first[left] = left[places[inverse]]
    return first
