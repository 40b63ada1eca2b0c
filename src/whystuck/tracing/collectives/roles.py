"""Which ranks do the same work, so that they can be compared."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.collectives.matched import Matching

# Ranks of one role do each kind of call as often, but for those at the ends of a trace.
_APART = 3
_APART_SHARE = 0.05


def find_roles(matching: Matching) -> NDArray[np.int64]:
    """Give ranks that make the same calls the same role: replicas, not stages of a pipeline.

    Args:
        matching: The calls of each rank, sends and receives too.

    Returns:
        The number of the role of each rank; -1 for ranks without calls.
    """
    width = len(matching.kinds)
    counts = np.zeros((len(matching.ranks), width), dtype=np.int64)
    for place, rank in enumerate(matching.ranks):
        counts[place] = np.bincount(rank.kind, minlength=width)
    different, inverse, often = np.unique(counts, axis=0, return_inverse=True, return_counts=True)
    role_of = np.full(len(different), -1, dtype=np.int64)
    leads: list[int] = []
    for one in np.argsort(-often, kind="stable").tolist():
        if not different[one].any():
            continue
        alike = (lead for lead in leads if _is_alike(different[lead], different[one]))
        lead = next(alike, None)
        if lead is None:
            role_of[one] = len(leads)
            leads.append(one)
        else:
            role_of[one] = role_of[lead]
    return role_of[inverse.reshape(-1)]


def _is_alike(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    apart = np.abs(one - other)
    return bool((apart <= np.maximum(_APART, _APART_SHARE * np.maximum(one, other))).all())
