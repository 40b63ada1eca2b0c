"""When is a job stalled? Pure: times and counters in, a decision out.

The rule of ``auto``: ``max(20 s, 5 x the longest gap between progress events)``, where start-up is
not counted, and 10 minutes before the first collective.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

AUTO_FLOOR_S = 20.0
AUTO_FACTOR = 5.0
STARTUP_LIMIT_S = 600.0
# A job whose last progress is no older than this, or twice the longest gap seen, is moving: steps
# of more than 5 s are rare, and nobody sees within 5 s that a job hangs.
_MOVING_FLOOR_S = 5.0
_MOVING_FACTOR = 2.0
# Before the first collective, imports and data sets take this long without any counter that moves.
_STARTING_S = 60.0

Counters = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class StallLimit:
    """The limit as the user gave it; ``fixed_s`` is None for ``auto``."""

    fixed_s: float | None = None

    def seconds(self, longest_gap_s: float, *, has_communicated: bool) -> float:
        """Return the limit that holds now."""
        if self.fixed_s is not None:
            # A fixed limit counts from the first collective: imports are no stall.
            return self.fixed_s if has_communicated else max(self.fixed_s, STARTUP_LIMIT_S)
        if not has_communicated:
            return STARTUP_LIMIT_S
        return max(AUTO_FLOOR_S, AUTO_FACTOR * longest_gap_s)


class StallClock:
    """Follows the counters of all ranks; any change on any rank is a progress event."""

    def __init__(self, limit: StallLimit, now_s: float) -> None:
        """Start the clock at ``now_s`` of a monotonic clock."""
        self._limit = limit
        self._last_progress_s = now_s
        self._last_look_s = now_s
        self._counters: dict[int, tuple[int, ...]] = {}
        self._has_communicated = False
        self.longest_gap_s = 0.0

    def look(self, counters: Counters, *, has_communicated: bool, now_s: float) -> bool:
        """Take the counters of now; return whether anything moved since the last look.

        When we were not run ourselves for some seconds (the machine slept, or starved), the job
        was not either, and that time does not count.
        """
        own_gap_s = now_s - self._last_look_s
        self._last_look_s = now_s
        if own_gap_s > AUTO_FLOOR_S / 4:
            self._last_progress_s += own_gap_s
        moved = dict(counters) != self._counters
        self._counters = dict(counters)
        if moved:
            if self._has_communicated:
                self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_progress_s)
            self._last_progress_s = now_s
        self._has_communicated = self._has_communicated or has_communicated
        return moved

    def stalled_s(self, now_s: float) -> float:
        """Return the seconds since the last progress event."""
        return max(0.0, now_s - self._last_progress_s)

    def is_moving(self, now_s: float) -> bool:
        """Return whether the last progress event is no older than usual for this job."""
        usual_s = max(_MOVING_FLOOR_S, _MOVING_FACTOR * self.longest_gap_s)
        return self.stalled_s(now_s) <= (usual_s if self._has_communicated else _STARTING_S)

    @property
    def limit_s(self) -> float:
        """Return the limit that holds now."""
        return self._limit.seconds(self.longest_gap_s, has_communicated=self._has_communicated)

    def is_stalled(self, now_s: float) -> bool:
        """Tell whether the limit is broken."""
        return self.stalled_s(now_s) > self.limit_s
