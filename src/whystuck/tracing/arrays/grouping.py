"""Rows with the same keys to one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Column, text_column

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Rows that have the same keys.

    Attributes:
        first: The first row of each group, so that ``key[first]`` are the keys; ascending keys.
        of: The group of each row.
    """

    first: Whole
    of: Whole

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def count(self) -> Whole:
        """How many rows each group has."""
        return np.bincount(self.of, minlength=len(self))

    def sum(self, values: Column) -> Whole:
        """Add whole numbers up in each group, exactly."""
        total = np.zeros(len(self), dtype=np.int64)
        np.add.at(total, self.of, values.astype(np.int64))
        return total

    def mean(self, values: Column) -> NDArray[np.float64]:
        """Return the mean of each group."""
        mean: NDArray[np.float64] = self.sum(values) / np.maximum(self.count, 1)
        return mean

    def std(self, values: Column) -> NDArray[np.float64]:
        """Return the standard deviation of each sample; NaN for a group of one row."""
        off = values - self.mean(values)[self.of]
        squares = np.bincount(self.of, weights=off * off, minlength=len(self))
        with np.errstate(invalid="ignore", divide="ignore"):
            made: NDArray[np.float64] = np.sqrt(squares / (self.count - 1))
        return made

    def min(self, values: Column) -> Column:
        """Return the least of each group."""
        return self._reduce(np.minimum, values)

    def max(self, values: Column) -> Column:
        """Return the greatest of each group."""
        return self._reduce(np.maximum, values)

    def _reduce(self, function: np.ufunc, values: Column) -> Column:
        if not len(self):
            return values[:0]
        order = np.argsort(self.of, kind="stable")
        bounds = np.cumsum(self.count) - self.count
        reduced: Column = function.reduceat(values[order], bounds)
        return reduced


def group_rows(*keys: NDArray[Any]) -> Groups:
    """Group rows by columns of whole numbers.

    Args:
        keys: Columns of one length; groups are sorted by the first, then the second, and so on.

    Returns:
        The groups; the row that is first in a group is the first that was given.
    """
    count = len(keys[0])
    if not count:
        none = np.empty(0, dtype=np.int64)
        return Groups(none, none)
    order = np.lexsort(keys[::-1])
    is_new = np.zeros(count, dtype=np.bool_)
    is_new[0] = True
    for key in keys:
        is_new[1:] |= key[order][1:] != key[order][:-1]
    of = np.empty(count, dtype=np.int64)
    of[order] = np.cumsum(is_new) - 1
    return Groups(order[is_new], of)


def pick_texts(texts: Sequence[str], index: NDArray[Any]) -> Column:
    """Return a column of texts by their index; empty where it is below 0."""
    if not len(texts):
        return text_column([""] * len(index))
    named: Column = text_column(texts)[np.maximum(index, 0)]
    named[index < 0] = ""
    return named
