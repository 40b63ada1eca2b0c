"""What is known of the steps of a rank: whether it makes any, how fast, and where it will be."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

NS_A_SECOND = 1_000_000_000
_KEPT = 16
_RECENT = 3
# A rank that has not stepped for this long, and for longer than its steps take, stands still.
STILL_NS = 10 * NS_A_SECOND
_STILL_STEPS = 5
# What the newest count is behind: heartbeats come once a second.
MARGIN_STEPS = 2


class StepWatch:
    """The counts of steps of one process, as they were told one after the other."""

    def __init__(self) -> None:
        """Begin without any."""
        self._told: deque[tuple[int, int]] = deque(maxlen=_KEPT)
        self._longest_ns = 0

    def note(self, steps: int, time_ns: int) -> None:
        """Take a count of steps and the time it is of; negative is unknown and says nothing."""
        if steps < 0:
            return
        if self._told and steps <= self._told[-1][0]:
            return
        if self._told:
            before, before_ns = self._told[-1]
            step_ns = (time_ns - before_ns) // (steps - before)
            self._longest_ns = max(self._longest_ns, step_ns)
        self._told.append((steps, time_ns))

    @property
    def steps(self) -> int:
        """The newest count, -1 when none is known."""
        return self._told[-1][0] if self._told else -1

    @property
    def steps_per_s(self) -> float:
        """How fast it steps, 0 when that is not known."""
        if len(self._told) < 2:  # noqa: PLR2004 - a rate needs two counts
            return 0.0
        return self._rate_since(0)

    def _rate_since(self, position: int) -> float:
        (first, first_ns), (last, last_ns) = self._told[position], self._told[-1]
        return (last - first) / max(last_ns - first_ns, 1) * NS_A_SECOND

    def is_moving(self, now_ns: int) -> bool | None:
        """Tell whether it steps.

        Args:
            now_ns: The time.

        Returns:
            None as long as that cannot be told: no count, or watched too shortly.
        """
        if not self._told:
            return None
        still_ns = now_ns - self._told[-1][1]
        if still_ns >= max(STILL_NS, _STILL_STEPS * self._longest_ns):
            return False
        return True if len(self._told) > 1 else None

    def still_s(self, now_ns: int) -> float:
        """Return for how long its count has been the same, in seconds."""
        return (now_ns - self._told[-1][1]) / NS_A_SECOND if self._told else 0.0

    def predict(self, time_ns: int) -> int:
        """Return how many steps it will have made at a time at most, if it goes on as before.

        A job that has just begun to step, or was traced a moment ago, is faster now than on the
        whole.
        """
        if not self._told:
            return -1
        steps, told_ns = self._told[-1]
        recent = max(0, len(self._told) - _RECENT)
        rate = max(self.steps_per_s, self._rate_since(recent))
        return steps + math.ceil(max(0, time_ns - told_ns) / NS_A_SECOND * rate)


def choose_start(watches: Iterable[StepWatch], ready_ns: int) -> int:
    """Choose an iteration that none of some ranks has begun when all of them know of it.

    Args:
        watches: Their steps.
        ready_ns: When the last of them will have been told.

    Returns:
        The iteration as Kineto counts them, from 0 for the first; -1 when that of a rank cannot
        be known.
    """
    found = list(watches)
    if not found or not all(one.steps_per_s for one in found):
        return -1
    return max(one.predict(ready_ns) for one in found) + MARGIN_STEPS


def choose_roundup(watches: Iterable[StepWatch]) -> int:
    """Choose a number of steps that takes about two seconds, for ranks that are late."""
    fastest = max((one.steps_per_s for one in watches), default=0.0)
    return max(1, math.ceil(2 * fastest))
