"""Tells whether the steps of a regular expression grow faster than a text made to keep it busy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.patterns.hostile_texts import Hostile, HostileTexts
from tests.patterns.steps import StepCounter, TooManyStepsError

# The longest line of a log that a pattern is given: `MAX_LINE` of the scanner.
LENGTH = 8192
# Steps beyond linear ones that a pattern may need for such a line: 10 to 30 ms. Where a run of one
# character is tried from each place, there are 33 million.
MOST_STEPS = 12_000_000
# Rounds of the shortest text; the others have two and three times as many.
_ROUNDS = 16
# Where a text must be longer than the shortest one to be taken at all.
_MORE_ROUNDS = 64
# What takes more is exponential: a square takes 130,000 for 192 rounds of 4 characters.
_MOST_COUNTED = 400_000


@dataclass(frozen=True)
class Slow:
    """A text for which a pattern takes long: steps for each number of rounds."""

    text: Hostile
    method: str
    steps: list[int]

    def __str__(self) -> str:
        before, unit, after = self.text.before, self.text.unit, self.text.after
        told = ", ".join(map(str, self.steps)) or f"more than {_MOST_COUNTED}"
        return f"{self.method} of {before[:60]!r} + {unit[:60]!r} * n + {after!r}: {told} steps"


def find_slow(pattern: re.Pattern[Any], methods: Iterable[str]) -> Slow | None:
    """Find a text that takes a pattern more than linear time.

    Args:
        pattern: The pattern.
        methods: How it is called; ``search`` if that is not known.
    """
    counter = StepCounter(pattern, _MOST_COUNTED)
    texts = HostileTexts(pattern).derive()
    tries = ((text, method) for method in _choose(set(methods)) for text in texts)
    return next(filter(None, (_try(counter, *one) for one in tries)), None)


def _choose(methods: set[str]) -> list[str]:
    """Return the methods to try: those that go over the whole text include the others."""
    if methods & {"finditer", "findall", "sub", "subn", "split"}:
        return ["finditer"]
    if "search" in methods or not methods:
        return ["search"]
    return sorted(methods)


def _try(counter: StepCounter, text: Hostile, method: str) -> Slow | None:
    for rounds in (_ROUNDS, _MORE_ROUNDS):
        # Squares of this size are the fewest that count.
        least = MOST_STEPS * (rounds * len(text.unit) / LENGTH) ** 2
        try:
            longest = _count(counter, text, method, 3 * rounds)
            if longest < 9 * least:
                return None
            steps = [_count(counter, text, method, n * rounds) for n in (1, 2)] + [longest]
        except TooManyStepsError:
            return Slow(text, method, [])
        if steps == sorted(steps):
            # Zero for a straight line, twice the square of the shortest for a parabola.
            bend = steps[2] - 2 * steps[1] + steps[0]
            return Slow(text, method, steps) if bend > 2 * least else None
    return None


def _count(counter: StepCounter, text: Hostile, method: str, rounds: int) -> int:
    steps, _ = counter.count(text.before + text.unit * rounds + text.after, method)
    return steps
