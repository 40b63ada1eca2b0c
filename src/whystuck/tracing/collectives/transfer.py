"""How fast collectives moved their data, once all members were there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ops.names import find_bus_factor
from whystuck.tracing.collectives.matched import Matching
from whystuck.tracing.collectives.ops import UNEVEN_OPS
from whystuck.tracing.collectives.skew import Arrivals

Real = NDArray[np.float64]


@dataclass(frozen=True)
class Rates:
    """Sizes and rates of the collectives of a group, as nccl-tests defines them; GB/s are 10^9."""

    bytes: NDArray[np.int64]
    algbw_gbps: Real
    busbw_gbps: Real


def measure_rates(matching: Matching, arrivals: Arrivals) -> Rates:
    """Measure the rates of the collectives of a group.

    algbw is the size over the time of the transfer, busbw that times a factor of the op and the
    number of members (nccl-tests, doc/PERFORMANCE.md). Where members have sizes of their own, the
    largest counts: it takes the longest.

    Args:
        matching: The matched calls.
        arrivals: Those of the group.

    Returns:
        The rates; NaN where size or time is not known, or not all members are seen.
    """
    group = arrivals.group
    size = max(group.size, len(group.rank))
    every = np.array([kind.bytes for kind in matching.kinds], dtype=np.int64)
    uneven = np.array([kind.op in UNEVEN_OPS for kind in matching.kinds], dtype=np.bool_)
    factors = [find_bus_factor(kind.op, size) for kind in matching.kinds]
    factor = np.array(factors, dtype=np.float64)  # NaN where there is none
    total = every[group.kind] if len(group.kind) else np.empty(0, dtype=np.int64)
    differs = uneven[group.kind] if len(group.kind) else np.empty(0, dtype=np.bool_)
    if differs.any():
        most = np.nan_to_num(matching.gather(group, "bytes"), nan=-1).max(axis=0)
        total = np.where(differs, most, total).astype(np.int64)
    is_known = (total > 0) & (arrivals.transfer_ns > 0) & (arrivals.seen == size)
    rate = np.where(is_known, total / np.where(is_known, arrivals.transfer_ns, 1), np.nan)
    return Rates(total, rate, rate * (factor[group.kind] if len(group.kind) else 1.0))
