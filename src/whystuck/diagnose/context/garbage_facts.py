"""Which ranks spend their time in full collections of garbage, and whether others wait for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whystuck.diagnose.algorithms.times.lateness import Late
from whystuck.diagnose.context.shared_wait import SharedWait
from whystuck.evidence.nodes.resources import GarbageSeries

# A rank that collects for less of the time costs little.
_MIN_SHARE = 0.05
# Looks come five times a second: fewer of them, or of those that met a collection, say nothing.
_MIN_LOOKS, _MIN_SEEN, _MIN_FULL = 50, 6, 3
# Shorter collections are no pauses, whatever their number.
_MIN_PAUSE_S = 0.02
# Pauses are the reason for what others wait if they are so much of it.
_MIN_PART = 0.5
_NS_PER_S = 1e9


@dataclass(frozen=True)
class Pausing:
    """A rank in full collections: the share of its time, how many, and the mean length of one."""

    rank: int
    share: float
    count: int
    pause_s: float
    artifact: str


def find_pausing(
    series: Sequence[GarbageSeries],
    begin_ns: int,
    late_ranks: Sequence[Late],
    shared: SharedWait | None,
) -> tuple[Pausing, ...]:
    """Find ranks that collect garbage for long, who has it worst first.

    Args:
        series: How often ranks were seen in full collections.
        begin_ns: When the first op was: what comes before it is no loss of a step.
        late_ranks: Ranks that their peers wait for throughout.
        shared: What ranks wait for each other where none is late throughout.

    Returns:
        The ranks; none where nobody waits for others, or not for that.
    """
    if not (late_ranks or (shared is not None and shared.is_for_peers)):
        return ()
    found = [one for item in series if (one := _measure(item, begin_ns)) is not None]
    found.sort(key=lambda one: -one.share)
    share = {one.rank: one.share for one in found}
    for late in late_ranks:
        if any(share.get(rank, 0.0) < _MIN_PART * late.lost_share for rank in late.ranks):
            return ()
    if shared is not None and sum(share.values()) < _MIN_PART * shared.for_peers:
        return ()
    return tuple(found)


def _measure(series: GarbageSeries, begin_ns: int) -> Pausing | None:
    points = [point for point in series.points if point.time_ns >= begin_ns]
    if not points:
        return None
    first, last = points[0], points[-1]
    looks, seen, full = last.looks - first.looks, last.seen - first.seen, last.full - first.full
    if looks < _MIN_LOOKS or seen < _MIN_SEEN or full < _MIN_FULL:
        return None
    share = seen / looks
    pause_s = share * (last.time_ns - first.time_ns) / _NS_PER_S / full
    if share < _MIN_SHARE or pause_s < _MIN_PAUSE_S:
        return None
    return Pausing(series.rank, share, full, pause_s, series.artifact)
