"""Texts that may keep a regular expression busy, made from the pattern itself.

A matcher that goes back takes long where one text can be divided among the parts of a pattern in
many ways, or where many places look like the beginning of a match. So each part that repeats gets a
long run of what it takes, behind what brings the matcher there; and each beginning of the pattern
is repeated. No text ends as a match would.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

# Private, but there is no other way to the tree of a pattern.
_parser: Any = import_module("re._parser")

_ORDINARY = "a0 _-.:/,\t!xZ\n"
_REPEATS = {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}
# A part with fewer rounds is no part that repeats.
_FEW_ROUNDS = 6
_MOST_BRANCHES = 6
_MOST_CHARACTERS = 4
_END = "\0"
# Numbers: flags take several times as long.
_CASELESS, _DOTALL = int(re.IGNORECASE), int(re.DOTALL)


@dataclass(frozen=True)
class Hostile:
    """A text of any length: what stands before, what is repeated, and what ends it."""

    before: str
    unit: str
    after: str


class HostileTexts:
    """Derives texts from one pattern."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        self._tree = parse_pattern(pattern)
        self._flags = pattern.flags
        self._sets: dict[int, frozenset[str]] = {}
        self._repeats = False
        self._has_edges = False
        self._all = set(_ORDINARY)
        self._explore(self._tree)
        self._all.discard(_END)
        self._order = {char: place for place, char in enumerate(_ORDINARY)}
        self._classes = self._divide()

    def derive(self) -> list[Hostile]:
        """Return the texts to try, none of them twice."""
        found: dict[Hostile, None] = {}
        if not self._repeats:
            return []
        for before, unit, others in self._pump(self._tree, ""):
            for after in (_END, *others):
                found[Hostile(before, unit, after)] = None
            if before:
                found[Hostile("", before + unit, _END)] = None
            for edge in self._edges():
                found[Hostile("", before + unit + edge, _END)] = None
        for unit in self._list_plain():
            found[Hostile("", unit, _END)] = None
        return list(found)

    def _edges(self) -> tuple[str, ...]:
        return (" ", "-", "\n") if self._has_edges else (" ",)

    def _list_plain(self) -> Iterator[str]:
        """Yield one character of each class that the pattern tells apart, and pairs of them."""
        plain = [group[0] for group in self._classes][: 2 * _MOST_CHARACTERS]
        yield from plain
        for one in plain[:_MOST_CHARACTERS]:
            yield from (one + other for other in plain[:_MOST_CHARACTERS] if other != one)

    def _explore(self, items: Iterable[tuple[Any, Any]]) -> None:
        """Note the characters of a pattern, and what it has."""
        for op, value in items:
            name = str(op)
            if name in ("LITERAL", "NOT_LITERAL"):
                self._note(value)
            elif name == "IN":
                for kind, item in value:
                    if str(kind) == "LITERAL":
                        self._note(item)
                    elif str(kind) == "RANGE":
                        self._note(item[0])
                        self._note(item[1])
            elif name in ("AT", "ASSERT", "ASSERT_NOT"):
                self._has_edges = True
            self._repeats |= name in _REPEATS and value[1] > _FEW_ROUNDS
            for part in _list_parts(name, value):
                self._explore(part)

    def _note(self, code: int) -> None:
        char = chr(code)
        self._all.add(char)
        if self._flags & _CASELESS:
            self._all |= {char.lower(), char.upper()} if len(char.upper()) == 1 else {char}

    def _divide(self) -> list[list[str]]:
        """Divide the characters into classes that no set of the pattern tells apart."""
        sets = [found for found in dict.fromkeys(self._sets_in(self._tree)) if len(found) > 1]
        groups: dict[tuple[bool, ...], list[str]] = {}
        for char in sorted(self._all, key=lambda one: (self._order.get(one, 99), one)):
            groups.setdefault(tuple(char in one for one in sets), []).append(char)
        return list(groups.values())

    def _sets_in(self, items: Iterable[tuple[Any, Any]]) -> Iterator[frozenset[str]]:
        for op, value in items:
            name = str(op)
            parts = _list_parts(name, value)
            if not parts and name not in ("AT", "GROUPREF"):
                yield self._take(name, value)
            for part in parts:
                yield from self._sets_in(part)

    def _take(self, name: str, value: Any) -> frozenset[str]:
        """Return the characters that an item takes that is one character wide."""
        key = id(value) if name == "IN" else hash((name, value))
        if key not in self._sets:
            self._sets[key] = frozenset(
                char for char in self._all if takes(name, value, char, self._flags)
            )
        return self._sets[key]

    def _pump(
        self, items: Iterable[tuple[Any, Any]], before: str
    ) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yield what brings a matcher to a part, what it can repeat there, and what ends that."""
        for op, value in items:
            name = str(op)
            if name in _REPEATS and value[1] > _FEW_ROUNDS:
                for unit in self._list_units(value[2]):
                    yield before, unit, self._list_ends(value[2])
            parts = _list_parts(name, value)
            for part in parts[:_MOST_BRANCHES]:
                yield from self._pump(part, before)
            if name not in ("ASSERT", "ASSERT_NOT"):
                before += self._sample([(op, value)])
        if before:
            yield "", before, ()

    def _list_units(self, body: Any) -> list[str]:
        """Return texts of one round of a repeat: of each class of characters, if it takes one."""
        if len(body) == 1 and not _list_parts(str(body[0][0]), body[0][1]):
            taken = self._take(str(body[0][0]), body[0][1])
            units = [next((one for one in group if one in taken), "") for group in self._classes]
            return [one for one in units if one][:_MOST_CHARACTERS]
        units = [self._sample(body), self._sample(body, full=True)]
        return [one for one in dict.fromkeys(units) if one]

    def _list_ends(self, body: Any) -> tuple[str, ...]:
        """Return a character that a repeat does not take: the first thing that can fail it."""
        taken = frozenset().union(*self._sets_in(body))
        return tuple(group[0] for group in self._classes if group[0] not in taken)[:1]

    def _sample(self, items: Iterable[tuple[Any, Any]], *, full: bool = False) -> str:
        """Return a text that a part matches: a short one, or with all that may be left out."""
        text = ""
        for op, value in items:
            name = str(op)
            if name in _REPEATS:
                rounds = max(value[0], 1 if full and value[1] else 0)
                text += self._sample(value[2], full=full) * min(rounds, 64)
            elif name in ("ASSERT", "ASSERT_NOT", "AT", "GROUPREF"):
                continue
            elif parts := _list_parts(name, value):
                text += self._sample(parts[0], full=full)
            else:
                taken = self._take(name, value)
                text += min(taken, key=lambda one: (self._order.get(one, 99), one), default="")
        return text


def _list_parts(name: str, value: Any) -> list[Any]:
    """Return the patterns inside an item."""
    if name == "BRANCH":
        return list(value[1])
    if name == "SUBPATTERN":
        return [value[3]]
    if name in _REPEATS:
        return [value[2]]
    if name in ("ASSERT", "ASSERT_NOT"):
        return [value[1]]
    if name == "GROUPREF_EXISTS":
        return [part for part in value[1:] if part is not None]
    return [value] if name == "ATOMIC_GROUP" else []


def parse_pattern(pattern: re.Pattern[Any]) -> Any:
    """Return the tree of a pattern, as `re` makes it: pairs of an operation and its value."""
    return _parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)


def takes(name: str, value: Any, char: str, flags: int) -> bool:
    """Return whether an item that is one character wide takes a character."""
    if flags & _CASELESS:
        forms = {char, char.lower(), char.upper()}
        return any(_takes(name, value, form, flags) for form in forms if len(form) == 1)
    return _takes(name, value, char, flags)


def _takes(name: str, value: Any, char: str, flags: int) -> bool:
    if name == "LITERAL":
        return bool(value == ord(char))
    if name == "NOT_LITERAL":
        return bool(value != ord(char))
    if name == "ANY":
        return char != "\n" or bool(flags & _DOTALL)
    if name == "RANGE":
        return bool(value[0] <= ord(char) <= value[1])
    if name == "CATEGORY":
        return _is_of(str(value).removeprefix("CATEGORY_"), char)
    members = [(str(op), item) for op, item in value]
    negated = members[0][0] == "NEGATE"
    return negated != any(_takes(op, item, char, flags) for op, item in members[negated:])


def _is_of(kind: str, char: str) -> bool:
    if kind.startswith("NOT_"):
        return not _is_of(kind.removeprefix("NOT_"), char)
    if kind == "DIGIT":
        return char.isdigit()
    return char.isspace() if kind == "SPACE" else char.isalnum() or char == "_"
