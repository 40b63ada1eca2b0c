"""Counts the steps that a regular expression takes for a text.

Times depend on the machine, and on what else it does. So the tree that `re` itself makes of a
pattern is walked here, in the order in which `re` tries things, and each attempt to match an item
is a step. Long bounds of repeats are shortened: what grows with the square of a text up to 200
characters, and not beyond, is linear.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from tests.patterns.hostile_texts import parse_pattern, takes

# What matches behind an item, from a position on: whether all of it does.
_Then = Callable[[int], bool]
_Match = Callable[[int, _Then], bool]

# More rounds of a bounded repeat are left out.
MOST_BOUNDED = 8
_MULTILINE = int(re.MULTILINE)


class TooManyStepsError(Exception):
    """A pattern took more steps than it may."""


class StepCounter:
    """Matches texts as `re` does, and counts the steps."""

    def __init__(
        self, pattern: re.Pattern[Any], most_steps: int, most_bounded: int = MOST_BOUNDED
    ) -> None:
        """Prepare to match.

        Args:
            pattern: The pattern.
            most_steps: The steps that one text may take.
            most_bounded: The rounds that a bounded repeat may take beyond its least ones.
        """
        tree = parse_pattern(pattern)
        self._most_steps = most_steps
        self._most_bounded = most_bounded
        self._sequence = self._compile(tree, pattern.flags)
        self._text = ""
        self._steps = 0
        self._groups: dict[int, tuple[int, int]] = {}

    def count(self, text: str, method: str) -> tuple[int, list[tuple[int, int]]]:
        """Return the number of steps, and the spans that match.

        Raises:
            TooManyStepsError: When there are more than the counter was made for.
        """
        self._text, self._steps = text, 0
        spans: list[tuple[int, int]] = []
        position = 0
        with _deep_recursion():
            while (span := self._find(position, method)) is not None:
                spans.append(span)
                if method != "finditer":
                    break
                # Behind an empty match, `re` would try once more for one that is not empty.
                position = max(span[1], span[0] + 1)
        return self._steps, spans

    def _find(self, position: int, method: str) -> tuple[int, int] | None:
        starts = range(position, len(self._text) + 1)
        for start in starts if method in ("search", "finditer") else (position,):
            self._groups = {}
            end = [-1]

            def is_end(at: int, end: list[int] = end) -> bool:
                end[0] = at
                return method != "fullmatch" or at == len(self._text)

            if self._sequence(start, is_end):
                return start, end[0]
        return None

    def _step(self) -> None:
        self._steps += 1
        if self._steps > self._most_steps:
            raise TooManyStepsError

    def _compile(self, items: Any, flags: int) -> _Match:
        matches = [self._compile_item(str(op), value, flags) for op, value in items]

        def match(position: int, then: _Then, place: int = 0) -> bool:
            if place == len(matches):
                return then(position)
            return matches[place](position, lambda at: match(at, then, place + 1))

        return matches[0] if len(matches) == 1 else match

    def _compile_item(self, name: str, value: Any, flags: int) -> _Match:
        compilers: dict[str, Callable[[Any, int], _Match]] = {
            "BRANCH": self._compile_branch,
            "SUBPATTERN": self._compile_group,
            "MAX_REPEAT": self._compile_repeat,
            "MIN_REPEAT": lambda one, kept: self._compile_repeat(one, kept, lazy=True),
            "POSSESSIVE_REPEAT": lambda one, kept: self._hold(self._compile_repeat(one, kept)),
            "ATOMIC_GROUP": lambda one, kept: self._hold(self._compile(one, kept)),
            "ASSERT": self._compile_look,
            "ASSERT_NOT": lambda one, kept: self._compile_look(one, kept, negated=True),
            "AT": self._compile_place,
            "GROUPREF_EXISTS": self._compile_choice,
            "GROUPREF": lambda one, _: self._compile_reference(one),
        }
        if name in compilers:
            return compilers[name](value, flags)
        does_take = _make_taker(name, value, flags)

        def match(position: int, then: _Then) -> bool:
            self._step()
            text = self._text
            return position < len(text) and does_take(text[position]) and then(position + 1)

        return match

    def _compile_branch(self, value: Any, flags: int) -> _Match:
        branches = [self._compile(one, flags) for one in value[1]]

        def match(position: int, then: _Then) -> bool:
            for one in branches:  # noqa: SIM110 - any() nests calls of C
                if one(position, then):
                    return True
            return False

        return match

    def _compile_group(self, value: Any, flags: int) -> _Match:
        number, added, removed, items = value
        body = self._compile(items, (flags | added) & ~removed)
        if number is None:
            return body

        def match(position: int, then: _Then) -> bool:
            before = self._groups.get(number)

            def close(at: int) -> bool:
                inner = self._groups.get(number)
                self._groups[number] = position, at
                if then(at):
                    return True
                self._restore(number, inner)
                return False

            if body(position, close):
                return True
            self._restore(number, before)
            return False

        return match

    def _restore(self, number: int, span: tuple[int, int] | None) -> None:
        if span is None:
            self._groups.pop(number, None)
        else:
            self._groups[number] = span

    def _compile_repeat(self, value: Any, flags: int, *, lazy: bool = False) -> _Match:
        least, most, items = value
        if most != _MAXREPEAT:
            most = min(int(most), least + self._most_bounded)
        if len(items) == 1 and str(items[0][0]) in _ONE_WIDE and not lazy:
            return self._compile_run(least, most, _make_taker(*_first(items), flags))
        body = self._compile(items, flags)

        def match(position: int, then: _Then, count: int = 0, last: int = -1) -> bool:
            def again(at: int) -> bool:
                return match(at, then, count + 1, position)

            self._step()
            if count < least:
                return body(position, again)
            # A round that took nothing is the last one.
            may_repeat = count < most and position != last
            if lazy:
                return then(position) or (may_repeat and body(position, again))
            return (may_repeat and body(position, again)) or then(position)

        return match

    def _compile_run(self, least: int, most: int, does_take: Callable[[str], bool]) -> _Match:
        def match(position: int, then: _Then) -> bool:
            text = self._text
            end, limit = position, min(len(text), position + most)
            while end < limit and does_take(text[end]):
                self._step()
                end += 1
            self._step()
            for at in range(end, position + least - 1, -1):
                self._step()
                if then(at):
                    return True
            return False

        return match

    def _hold(self, body: _Match) -> _Match:
        """Return a matcher that does not go back into a part that has matched."""

        def match(position: int, then: _Then) -> bool:
            end = self._end_of(body, position)
            return end is not None and then(end)

        return match

    def _end_of(self, body: _Match, position: int) -> int | None:
        ends: list[int] = []

        def note(at: int) -> bool:
            ends.append(at)
            return True

        return ends[-1] if body(position, note) else None

    def _compile_look(self, value: Any, flags: int, *, negated: bool = False) -> _Match:
        direction, items = value
        body = self._compile(items, flags)
        width = items.getwidth()[0] if direction < 0 else 0

        def match(position: int, then: _Then) -> bool:
            self._step()
            start = position - width
            is_there = start >= 0 and self._end_of(body, start) is not None
            return is_there != negated and then(position)

        return match

    def _compile_place(self, value: Any, flags: int) -> _Match:
        name = str(value).removeprefix("AT_")

        def match(position: int, then: _Then) -> bool:
            self._step()
            return self._is_at(name, position, flags) and then(position)

        return match

    def _is_at(self, name: str, position: int, flags: int) -> bool:
        text = self._text
        rest = text[position : position + 2]
        if name.startswith("BEGINNING"):
            is_line = name == "BEGINNING" and flags & _MULTILINE
            return position == 0 or bool(is_line and text[position - 1] == "\n")
        if name == "END_STRING":
            return not rest
        if name == "END":
            return rest in ("", "\n") or bool(flags & _MULTILINE and rest[0] == "\n")
        before = position > 0 and _is_word(text[position - 1])
        return (before != (rest != "" and _is_word(rest[0]))) == (name == "BOUNDARY")

    def _compile_choice(self, value: Any, flags: int) -> _Match:
        number, *parts = value
        yes, no = (self._compile(one or (), flags) for one in parts)

        def match(position: int, then: _Then) -> bool:
            chosen = yes if number in self._groups else no
            return chosen(position, then)

        return match

    def _compile_reference(self, number: int) -> _Match:
        def match(position: int, then: _Then) -> bool:
            self._step()
            if number not in self._groups:
                return False
            start, end = self._groups[number]
            same = self._text[start:end]
            return self._text.startswith(same, position) and then(position + len(same))

        return match


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Allow some calls for each character of a text."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 100_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _first(items: Any) -> tuple[str, Any]:
    return str(items[0][0]), items[0][1]


def _make_taker(name: str, value: Any, flags: int) -> Callable[[str], bool]:
    return lru_cache(maxsize=None)(lambda char: takes(name, value, char, flags))


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


_ONE_WIDE = {"LITERAL", "NOT_LITERAL", "ANY", "IN"}
_MAXREPEAT: Any = re._constants.MAXREPEAT  # type: ignore[attr-defined]  # no public name
