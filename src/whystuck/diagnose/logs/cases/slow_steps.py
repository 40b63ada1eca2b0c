"""Which of the steps that a loop prints take far longer than the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

# A slow step takes so many times as long as the others, and so much longer.
_LONGER, _LONGER_S = 3.0, 1.0
# So many steps of each kind tell them apart; more slow ones than this share are no exception.
_LEAST_USUAL, _MOST_SHARE = 2, 0.75


@dataclass(frozen=True)
class SlowSteps:
    """The slow steps of one loop, and how long the others take, in seconds."""

    slow: tuple[LogEvent, ...]
    usual: tuple[LogEvent, ...]
    usual_s: float

    @property
    def slow_s(self) -> float:
        """How long the middle one of the slow steps takes."""
        return median(map(read_s, self.slow))

    @property
    def distance(self) -> int:
        """How far the slow steps are apart, where it is always as far; 0 where it is not."""
        numbers = [int(event.groups["step"]) for event in self.slow]
        found = {later - earlier for earlier, later in pairwise(numbers)}
        return found.pop() if len(found) == 1 else 0


def read_s(event: LogEvent) -> float:
    """Return how long a step took."""
    return float(event.groups["s"])


def list_slow_steps(view: LogView) -> Iterator[SlowSteps]:
    """Yield the slow steps of each log, where a usual one stands before them."""
    logs: dict[str, dict[int, LogEvent]] = {}
    for event in view.list_signatures("table.step_time"):
        steps, number = logs.setdefault(event.artifact, {}), int(event.groups["step"])
        if number not in steps or read_s(steps[number]) < read_s(event):
            steps[number] = event  # several ranks print it
    for steps in logs.values():
        if (found := _split([steps[number] for number in sorted(steps)])) is not None:
            yield found


def _split(steps: Sequence[LogEvent]) -> SlowSteps | None:
    """Part steps at the largest gap between their times; None where there is none."""
    times = sorted(map(read_s, steps))
    gaps = [(later / earlier, later) for earlier, later in pairwise(times) if earlier > 0]
    times_longer, least = max(gaps, default=(0.0, 0.0))
    if times_longer < _LONGER:
        return None
    slow = tuple(event for event in steps if read_s(event) >= least)
    usual = tuple(event for event in steps if read_s(event) < least)
    # The first steps of a job are slow for other reasons.
    slow = tuple(event for event in slow if int(event.groups["step"]) > _first(usual))
    usual_s = median(map(read_s, usual))
    is_apart = least >= usual_s + _LONGER_S
    is_clear = len(usual) >= _LEAST_USUAL and len(slow) <= _MOST_SHARE * len(steps)
    return SlowSteps(slow, usual, usual_s) if slow and is_apart and is_clear else None


def _first(steps: Sequence[LogEvent]) -> int:
    return min(int(event.groups["step"]) for event in steps)
