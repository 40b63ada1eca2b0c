"""Figures of groups of values, all groups at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Real = NDArray[np.float64]

_MOST = 2**62
_EXACT = 2**53
# Up to so many codes a value, counting is quicker than sorting.
_DENSE = 4


def number_codes(codes: NDArray[np.integer], size: int) -> tuple[Whole, Whole]:
    """Number the codes that occur, in ascending order; what `np.unique` does, without sorting.

    Args:
        codes: Numbers from 0 to ``size`` - 1, of which most occur often.
        size: How many codes there may be; memory grows with it.

    Returns:
        The codes that occur, and for each of ``codes`` its position in them.
    """
    occurs = np.zeros(size, dtype=np.bool_)
    occurs[codes] = True
    found = np.flatnonzero(occurs)
    place = np.empty(size, dtype=np.int64)
    place[found] = np.arange(len(found))
    return found, place[codes]


def number_values(values: Whole) -> tuple[Whole, Whole]:
    """Number the values that occur, in ascending order; quick where they are nearly in order.

    Args:
        values: Whole numbers.

    Returns:
        The values that occur, and for each of ``values`` its position in them.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    is_new = np.ones(len(values), dtype=np.bool_)
    is_new[1:] = ordered[1:] != ordered[:-1]
    place = np.empty(len(values), dtype=np.int64)
    place[order] = np.cumsum(is_new) - 1
    return ordered[is_new], place


def look_up(keys: Whole, wanted: Whole) -> Whole:
    """Find values among sorted ones.

    Args:
        keys: Whole numbers, ascending; at least one.
        wanted: Whole numbers.

    Returns:
        The position in ``keys`` of the first that equals each of ``wanted``, -1 where none does.
    """
    low, top = int(keys[0]), int(keys[-1])
    if top - low >= _DENSE * (len(keys) + len(wanted)):
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[place] == wanted, place, -1)
    # One more, for all that lie outside.
    places = np.full(top - low + 2, -1, dtype=np.int64)
    # Of equal ones the first is written last, and stays.
    places[(keys - low)[::-1]] = np.arange(len(keys) - 1, -1, -1)
    is_inside = (wanted >= low) & (wanted <= top)
    return places[np.where(is_inside, wanted - low, top - low + 1)]


def sum_groups(values: Whole, group: Whole, size: int) -> Whole:
    """Add up whole numbers by group, exactly.

    Args:
        values: Whole numbers.
        group: The group of each, from 0 to ``size`` - 1.
        size: The number of groups.

    Returns:
        A sum for each group, 0 where it has no values.
    """
    if size == 1:
        return np.array([values.sum()], dtype=np.int64)
    if len(values) and max(int(values.max()), -int(values.min())) < _EXACT // len(values):
        # Real numbers hold the sums exactly, and add up quicker.
        return np.bincount(group, weights=values, minlength=size).astype(np.int64)
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, group, values)
    return sums


def sort_in_groups(values: Whole, group: Whole) -> Whole:
    """Sort values by group, and within a group by size.

    Args:
        values: Whole numbers.
        group: The group of each, from 0.

    Returns:
        The values in order.
    """
    if not len(values):
        return values
    low, top = int(values.min()), int(group.max())
    span = int(values.max()) - low + 1
    if span >= _MOST // (top + 1):
        return values[np.lexsort((values, group))]
    # One number for both sorts several times faster than an order by two keys.
    both = group * span + (values - low)
    if span * (top + 1) <= _DENSE * len(values):
        both = np.repeat(np.arange(span * (top + 1)), np.bincount(both, minlength=span * (top + 1)))
    else:
        both = np.sort(both, kind="stable")
    return both % span + low


def order_in_groups(values: Whole, group: Whole) -> Whole:
    """Order values by group, and within a group by size; equal ones stay as they are.

    Args:
        values: Whole numbers; it is quick where they are nearly in order.
        group: The group of each, from 0.

    Returns:
        The positions of the values in order.
    """
    order = np.argsort(values, kind="stable")
    grouped = group[order]
    if len(group) and int(group.max()) < np.iinfo(np.int16).max:
        # Short numbers are sorted by their digits, in one pass.
        grouped = grouped.astype(np.int16)
    return order[np.argsort(grouped, kind="stable")]


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
    ordered = sort_in_groups(values, group)
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
