"""The time between one piece of work and the next on a stream or a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.arrays.intervals import Times, reach_in_groups

NO_LAUNCH = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Gaps:
    """What lies before each piece of work, by place and start of the work.

    ``position`` is that of the work in `TraceView.device_rows`, ``place`` where it ran, ``gap_ns``
    how long nothing ran there before it: 0 for the first of a place, which ``is_first`` marks.
    ``is_unlinked`` tells that its launch is not in the trace, ``is_host`` that it was launched
    only after the work before had ended.
    """

    position: NDArray[np.int64]
    place: NDArray[np.int64]
    gap_ns: Times
    is_first: NDArray[np.bool_]
    is_unlinked: NDArray[np.bool_]
    is_host: NDArray[np.bool_]

    def is_short(self, threshold_ns: int) -> NDArray[np.bool_]:
        """Tell the gaps for which the host is not to blame, and that are shorter than this."""
        return ~self.is_host & (self.gap_ns < threshold_ns)


def find_gaps(start: Times, end: Times, launched: Times, place: NDArray[np.int64]) -> Gaps:
    """Find the gaps between pieces of work.

    Args:
        start: When each piece of work began, in ns.
        end: When it ended.
        launched: When its launch began, `NO_LAUNCH` where that is not in the trace.
        place: The number of its place, from 0.

    Returns:
        A gap for each piece of work.
    """
    # Of work that begins at once, that launched first ends the gap.
    order = np.lexsort((launched, start, place))
    start, place, launched = start[order], place[order], launched[order]
    reach = reach_in_groups(end[order], place)
    before = np.r_[start[:1], reach[:-1]]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = place[1:] != place[:-1]
    gap = np.where(is_first, 0, np.maximum(start - before, 0))
    is_unlinked = launched == NO_LAUNCH
    is_host = ~is_unlinked & ~is_first & (launched > before)
    return Gaps(order, place, gap, is_first, is_unlinked, is_host)
