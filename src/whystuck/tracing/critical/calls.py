"""Joins the collectives of a rank's graph with those that are matched across ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]

_KEYS = ("start_ns", "end_ns")


def find_calls(known: Mapping[str, Rows], wanted: Mapping[str, Rows]) -> Rows:
    """Return the row in ``known`` of each row of ``wanted``, -1 where there is none.

    Args:
        known: Columns with the start and end of each call, which tell it.
        wanted: The same of others.
    """
    count = len(wanted["start_ns"])
    if not len(known.get("start_ns", ())) or not count:
        return np.full(count, -1, dtype=np.int64)
    both = np.stack([np.concatenate([known[name], wanted[name]]) for name in _KEYS])
    key = np.unique(both, axis=1, return_inverse=True)[1].ravel()
    place = np.full(int(key.max()) + 1, -1, dtype=np.int64)
    place[key[: len(key) - count]] = np.arange(len(key) - count)
    return place[key[len(key) - count :]]
