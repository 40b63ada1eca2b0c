"""Which of two moments came first, as far as the clocks of logs can tell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from whystuck.evidence.logs.lines import LogEvent, LogTime

_NS = 1_000_000_000
# Clocks that nothing compares may be off by minutes, and in another zone.
_UNKNOWN_NS = 300 * _NS
# Times before this count from the start of a machine, not from 1970.
_EPOCH_NS = 946_684_800 * _NS
_ZONE_STEP_NS = 900 * _NS
_WIDEST_ZONE_NS = 26 * 3600 * _NS
# What two kinds of logs of one host write of one moment lies this far apart at most.
_SLACK_NS = 2 * _NS
# Ranks come to one collective, and notice the end of a peer, within this.
_ANCHOR_NS = 10 * _NS
_ANCHORS = {
    "c10d.watchdog_timeout": ("op", "seq"),
    "gloo.peer_closed": (),
    "nccl.socket_closed": (),
    "store.reset": (),
}


@dataclass(frozen=True)
class Offset:
    """By how much one clock is ahead of another, and how sure that is, both in nanoseconds."""

    ns: int
    error_ns: int


class Clocks:
    """Compares times of several clocks.

    Events that come about on all hosts together tell how far their clocks are apart: the time limit
    of one collective, connections that a peer closed. Where none does, two clocks may be minutes
    apart, and whole quarters of an hour too when their zones are not known.
    """

    def __init__(self, events: Iterable[LogEvent]) -> None:
        """Learn the offsets of clocks from events that were seen on several of them."""
        seen: dict[tuple[str, ...], dict[str, LogTime]] = {}
        for event in events:
            if event.signature in _ANCHORS and event.time is not None:
                names = _ANCHORS[event.signature]
                key = (event.signature, *(event.groups.get(name) or "" for name in names))
                first = seen.setdefault(key, {})
                known = first.get(event.time.clock)
                if known is None or event.time.ns < known.ns:
                    first[event.time.clock] = event.time
        self._anchors = tuple(times for times in seen.values() if len(times) > 1)
        self._anchored = frozenset(clock for times in self._anchors for clock in times)
        self._offsets: dict[tuple[str, str], Offset | None] = {}

    def bound_gap(self, one: LogTime, other: LogTime) -> tuple[int, int] | None:
        """Bound how much later the other moment is, in nanoseconds; None when nothing tells."""
        low = other.ns - one.ns - one.step_ns
        high = other.ns - one.ns + other.step_ns
        if one.clock == other.clock:
            slack = 0 if one.is_capture and other.is_capture else _SLACK_NS
            if one.step_ns == other.step_ns and one.is_zoned == other.is_zoned:
                slack = 0
            return low - slack, high + slack
        if (one.ns < _EPOCH_NS) != (other.ns < _EPOCH_NS):
            return None
        offset = self.find_offset(one.clock, other.clock)
        if offset is not None:
            shift = offset.ns
            return low - shift - offset.error_ns, high - shift + offset.error_ns
        if one.is_zoned and other.is_zoned:
            return low - _UNKNOWN_NS, high + _UNKNOWN_NS
        wide = _UNKNOWN_NS + _WIDEST_ZONE_NS
        if abs(other.ns - one.ns) > wide:
            return low - wide, high + wide
        return None

    def find_offset(self, one: str, other: str) -> Offset | None:
        """Return by how much the other clock is ahead; None when nothing compares the two."""
        if one not in self._anchored or other not in self._anchored:
            return None
        # Jobs have too many clocks to compare each with each beforehand.
        pair = one, other
        if pair not in self._offsets:
            self._offsets[pair] = _measure(
                [
                    times[other].ns - times[one].ns
                    for times in self._anchors
                    if one in times and other in times
                ]
            )
        return self._offsets[pair]

    def is_before(self, one: LogTime | None, other: LogTime | None, *, apart: bool = False) -> bool:
        """Tell whether one moment is surely before another.

        Args:
            one: The moment that may be first.
            other: The moment that may be second.
            apart: Whether different programs wrote the two, which may not agree on the zone.
        """
        if one is None or other is None:
            return False
        gap = self.bound_gap(one, other)
        if gap is None or gap[0] < 0:
            return False
        is_zoned = one.is_zoned and other.is_zoned
        return is_zoned or not apart or not _is_zone_apart(gap)


def _is_zone_apart(gap: tuple[int, int]) -> bool:
    """Tell whether two times may be the same moment in two zones."""
    low, high = max(0, gap[0] - 30 * _NS), gap[1] + 30 * _NS
    return low <= _WIDEST_ZONE_NS and high // _ZONE_STEP_NS > low // _ZONE_STEP_NS


def _measure(shifts: list[int]) -> Offset | None:
    """Make one offset of several, unless they contradict each other."""
    if not shifts or max(shifts) - min(shifts) > 2 * _ANCHOR_NS:
        return None
    return Offset((min(shifts) + max(shifts)) // 2, _ANCHOR_NS + (max(shifts) - min(shifts)) // 2)
