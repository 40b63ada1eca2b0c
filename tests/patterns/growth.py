"""Measures how the time of a regular expression grows with a text that is made to keep it busy."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.patterns.hostile_texts import Hostile, HostileTexts

# The longest line of a log that a pattern is given: `MAX_LINE` of the scanner.
LENGTH = 8192
# CPU time that a pattern may need for such a line, however its time grows: several times what any
# of them needs, so that a busy machine fails none.
FLOOR = 0.06
# Twice the text takes twice the time, four times where it is quadratic.
MOST_GROWTH = 3.0
# A pattern that takes longer than this for so short a text takes for ever for a line.
_SHORT, _SHORT_FLOOR = 200, 0.005
# Texts of this length show which ones are worth longer tries.
_FIRST, _MOST_TEXTS = 256, 3
# Behind the bounds of repeats, such as `{0,1000}`, time is linear.
_LONGEST_BOUND, _LEAST_GROWTH = 1024, 2.5
_TRIES = 5


@dataclass(frozen=True)
class Slow:
    """A text for which a pattern takes long: seconds for a length, and for half of it."""

    text: Hostile
    method: str
    length: int
    seconds: float
    half: float

    def __str__(self) -> str:
        before, unit, after = self.text.before, self.text.unit, self.text.after
        return (
            f"{self.method} of {before[:60]!r} + {unit[:60]!r} * n + {after!r} takes "
            f"{1e3 * self.seconds:.0f} ms for {self.length} characters, "
            f"{1e3 * self.half:.1f} ms for half of them"
        )


def find_slow(pattern: re.Pattern[Any], methods: Iterable[str]) -> Slow | None:
    """Find a text that takes a pattern more than linear time.

    Args:
        pattern: The pattern.
        methods: How it is called; ``search`` if that is not known.
    """
    texts = HostileTexts(pattern)
    listed = texts.derive()
    for method in _choose(set(methods)):
        growths = [_Growth(_bind(pattern, method), method, text) for text in listed]
        # Where a repeat holds another one, each few characters may double the time.
        for one in growths if texts.may_explode else ():
            if slow := one.find_short():
                return slow
        for one in sorted(growths, key=_Growth.time_first, reverse=True)[:_MOST_TEXTS]:
            if slow := one.find_long():
                return slow
    return None


def _choose(methods: set[str]) -> list[str]:
    """Return the methods to try: those that go over the whole text include the others."""
    if methods & {"finditer", "findall", "sub", "subn", "split"}:
        return ["finditer"]
    if "search" in methods or not methods:
        return ["search"]
    return sorted(methods)


def _bind(pattern: re.Pattern[Any], method: str) -> Callable[[str], float]:
    encoding = None if isinstance(pattern.pattern, str) else "latin-1"

    def call(text: str) -> float:
        given = text if encoding is None else text.encode(encoding, "replace")
        start = time.process_time()
        if method == "finditer":
            deque(pattern.finditer(given), maxlen=0)
        else:
            getattr(pattern, method)(given)
        return time.process_time() - start

    return call


class _Growth:
    """The time that one text takes, the longer it is."""

    def __init__(self, call: Callable[[str], float], method: str, text: Hostile) -> None:
        self._call = call
        self._method = method
        self._text = text

    def find_short(self) -> Slow | None:
        """Try short texts, each with a few more rounds than the one before."""
        around, unit = len(self._text.before) + len(self._text.after), len(self._text.unit)
        rounds = 6
        while (length := around + rounds * unit) < _SHORT:
            if self._time(length) > _SHORT_FLOOR and (slow := self._confirm(length, _SHORT_FLOOR)):
                return slow
            rounds += max(2, rounds // 6)
        return None

    def time_first(self) -> float:
        """Measure the first of the longer texts."""
        return self._time(_FIRST)

    def find_long(self) -> Slow | None:
        """Try texts that double, as long as the time grows faster than they do."""
        before, length = self._time(_FIRST), 2 * _FIRST
        while length <= LENGTH:
            seconds = self._time(length)
            if seconds > FLOOR and (slow := self._confirm(length, FLOOR)):
                return slow
            is_little = length > _LONGEST_BOUND or seconds < FLOOR * (length / LENGTH) ** 2
            if is_little and seconds < _LEAST_GROWTH * before:
                # One measurement of a text so short may be off by its own size.
                before, seconds = self._time_least(length // 2), self._time_least(length)
                if seconds < _LEAST_GROWTH * before:
                    return None
            before, length = seconds, 2 * length
        return None

    def _confirm(self, length: int, floor: float) -> Slow | None:
        """Measure again, as another process may have been in the way."""
        seconds, half = self._time_least(length), self._time_least(length // 2)
        if seconds <= floor or seconds <= MOST_GROWTH * half:
            return None
        return Slow(self._text, self._method, length, seconds, half)

    def _time_least(self, length: int) -> float:
        return min(self._time(length) for _ in range(_TRIES))

    def _time(self, length: int) -> float:
        return self._call(self._text.make(length))
