"""What rules look at: the figures of each rank over the last minutes; bounded."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final, NamedTuple

MAX_POINTS: Final = 512
"""Points of each kind that are kept of a rank."""
# Counts of steps are read at any moment of a step: over ten steps that is an error of some percent.
_MIN_STEPS: Final = 10
_MAX_WAIT_S: Final = 8.0
# Two beats are never closer than this; one that was read twice is one.
_SAME_BEAT_S: Final = 0.3


class RankLook(NamedTuple):
    """What is known of a rank at one moment; None is unknown.

    ``time_s`` is of a clock that only goes forward: when its counters were read. ``age_s`` is how
    long ago it made progress, ``gpu`` the load of its device from 0 to 1.
    """

    time_s: float
    steps: float | None = None
    pending: float | None = None
    age_s: float | None = None
    gpu: float | None = None
    read_s: float = 0.0


class Point(NamedTuple):
    """A figure, and when it was measured."""

    time_s: float
    value: float


@dataclass
class RankHistory:
    """The last figures of one rank.

    ``step_s`` is seconds a step, ``waiting`` is 1 for each look at which a collective was under
    way and 0 for the others, ``gpu`` is load.
    """

    first_s: float = 0.0
    last_s: float = 0.0
    step_s: deque[Point] = field(default_factory=lambda: deque(maxlen=MAX_POINTS))
    waiting: deque[Point] = field(default_factory=lambda: deque(maxlen=MAX_POINTS))
    gpu: deque[Point] = field(default_factory=lambda: deque(maxlen=MAX_POINTS))
    age: Point | None = None
    _anchor: Point | None = None

    def note(self, look: RankLook) -> None:
        """Take a look; those that are not newer than the last of their kind change nothing."""
        self.first_s = self.first_s or look.time_s
        self.last_s = max(self.last_s, look.time_s, look.read_s)
        if look.age_s is not None:
            self.age = Point(look.time_s, look.age_s)
        if look.gpu is not None and _is_new(self.gpu, look.time_s):
            self.gpu.append(Point(look.time_s, look.gpu))
        if look.pending is not None and _is_new(self.waiting, look.time_s):
            self.waiting.append(Point(look.time_s, float(look.pending > 0)))
        if look.steps is not None:
            self._note_steps(look.time_s, look.steps)

    def _note_steps(self, time_s: float, steps: float) -> None:
        anchor = self._anchor
        if anchor is None or steps < anchor.value:  # the first look, or the job began again
            self._anchor = Point(time_s, steps)
            return
        made, taken_s = steps - anchor.value, time_s - anchor.time_s
        if made > 0 and (made >= _MIN_STEPS or taken_s >= _MAX_WAIT_S) and taken_s > _SAME_BEAT_S:
            # Who begins to look in the middle of start-up sees a long first step.
            if anchor.value > 0:
                self.step_s.append(Point(time_s, taken_s / made))
            self._anchor = Point(time_s, steps)


class JobHistory:
    """The ranks of one job."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankHistory] = {}

    def note(self, rank: int, look: RankLook) -> None:
        """Take a look at one rank."""
        self.ranks.setdefault(rank, RankHistory()).note(look)

    def living(self, since_s: float) -> dict[int, RankHistory]:
        """Return the ranks of which something was heard since then."""
        return {rank: one for rank, one in self.ranks.items() if one.last_s >= since_s}

    def forget(self, before_s: float) -> None:
        """Forget ranks that were last seen before that time."""
        self.ranks = self.living(before_s)


def values_between(points: deque[Point], begin_s: float, end_s: float) -> list[float]:
    """Return the values measured after ``begin_s`` and until ``end_s``, the newest first."""
    since = takewhile(lambda point: point.time_s > begin_s, reversed(points))
    return [point.value for point in since if point.time_s <= end_s]


def values_before(points: deque[Point], skipped: int, begin_s: float, at_most: int) -> list[float]:
    """Return the last values before the ``skipped`` newest points, none from until ``begin_s``."""
    found = islice(reversed(points), skipped, skipped + at_most)
    return [value for time_s, value in found if time_s > begin_s]


def newest(points: deque[Point], begin_s: float, at_least: int) -> list[Point]:
    """Return the points since ``begin_s``, or the last few when these are less than that."""
    found = list(takewhile(lambda point: point.time_s > begin_s, reversed(points)))
    if len(found) < at_least:
        found = list(islice(reversed(points), at_least))
    return found[::-1]


def _is_new(points: deque[Point], time_s: float) -> bool:
    return not points or time_s - points[-1].time_s > _SAME_BEAT_S
