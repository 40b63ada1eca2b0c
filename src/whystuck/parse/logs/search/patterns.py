"""What a regular expression needs: that it is safe to run, and the texts no match is without.

A pattern may only use what automata can do, so that any engine gives the same answer: no
look-around, no back-reference, nothing possessive. A repeat inside a repeat is refused, unless
something between two rounds keeps them apart, as `re` could need exponential time for it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import product
from typing import Any

from whystuck.parse.errors import ParseError

# The tree of a pattern. The module is private, but there is no other way to it, and it has had this
# form since Python 3.11; tests read every pattern we ship.
_parser: Any = import_module("re._parser")

MAX_PATTERN = 1000
MIN_LITERAL = 4
_MAX_CHOICES = 64
_MAX_CLASS = 8
_RARE = 16
# What lines of jobs that are well begin with.
_COMMON = "NCCL INFO NET/IB : Using [0]"
# The limit of RE2.
_MAX_REPEAT = 1000
# So few rounds cost no more than as many repeats side by side.
_FEW_ROUNDS = 4
_REFUSED = {
    "ASSERT": "look-ahead and look-behind",
    "ASSERT_NOT": "look-ahead and look-behind",
    "GROUPREF": "back-references",
    "GROUPREF_EXISTS": "conditions",
    "ATOMIC_GROUP": "atomic groups",
    "POSSESSIVE_REPEAT": "possessive repeats",
}
_REPEATS = {"MAX_REPEAT", "MIN_REPEAT"}


@dataclass(frozen=True)
class Literals:
    """Texts of which each match holds at least one; ``caseless`` when case does not count."""

    texts: tuple[bytes, ...]
    caseless: bool


@dataclass(frozen=True)
class _Needs:
    """What a part of a pattern matches: all its texts, or else texts that each match holds."""

    exact: frozenset[str] | None = None
    held: frozenset[str] | None = None


def check_pattern(pattern: str) -> None:
    """Check that a pattern is safe for any engine and for hostile text.

    Raises:
        ParseError: It is not, with the reason.
    """
    if len(pattern) > MAX_PATTERN:
        raise ParseError(f"a pattern has at most {MAX_PATTERN} characters, this one {len(pattern)}")
    if not pattern.isascii():
        raise ParseError("a pattern is ASCII; write other bytes as \\xNN")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern.encode())
            tree = _parser.parse(pattern.encode())
    except (re.error, OverflowError, RecursionError, Warning) as problem:
        raise ParseError(f"not a regular expression: {problem}") from None
    if tree.state.flags & re.VERBOSE:
        raise ParseError("verbose patterns are not supported")
    for name, value in _walk(tree):
        _check_item(name, value)


# Twice the patterns that we ship: with those, it takes 0.4 ms each.
@lru_cache(maxsize=512)
def find_literals(pattern: str) -> Literals:
    """Find texts of which every match of a pattern holds one, the most telling ones.

    Args:
        pattern: A pattern that ``check_pattern`` accepts.

    Raises:
        ParseError: Nothing of at least ``MIN_LITERAL`` characters is in every match, so a log
            could not be searched quickly for it.
    """
    tree = _parser.parse(pattern.encode())
    needs = _needs_of(tree)
    texts = _best([found for found in (needs.exact, needs.held) if found])
    if texts is None:
        raise ParseError(f"every match must hold a fixed text of at least {MIN_LITERAL} characters")
    caseless = bool(tree.state.flags & re.IGNORECASE) or any(
        name == "SUBPATTERN" and value[1] & re.IGNORECASE for name, value in _walk(tree)
    )
    return Literals(tuple(sorted(text.encode("latin-1") for text in texts)), caseless)


def _walk(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    for op, value in items:
        yield str(op), value
        for part in _parts(str(op), value):
            yield from _walk(part)


def _parts(name: str, value: Any) -> list[Any]:  # noqa: ANN401
    """Return the patterns inside an item."""
    if name == "BRANCH":
        return list(value[1])
    if name == "SUBPATTERN":
        return [value[3]]
    return [value[2]] if name in _REPEATS else []


def _check_item(name: str, value: Any) -> None:  # noqa: ANN401
    if name in _REFUSED:
        raise ParseError(f"{_REFUSED[name]} are not supported, as automata cannot run them")
    members = value if name == "IN" else [(name, value)]
    if any(str(op) == "LITERAL" and item in b"\r\n" for op, item in members) and not (
        name == "IN" and str(members[0][0]) == "NEGATE"
    ):
        raise ParseError("a pattern is matched with one line: it cannot hold a line break")
    if name in _REPEATS:
        low, high, body = value
        if max(low, 0 if high == _parser.MAXREPEAT else high) > _MAX_REPEAT:
            raise ParseError(f"a repeat counts to {_MAX_REPEAT} at most")
        if (
            high > _FEW_ROUNDS
            and any(_is_loose(*item) for item in _walk(body))
            and not _kept_apart(body)
        ):
            raise ParseError("a repeat inside a repeat can take for ever; write it as one")


def _is_loose(name: str, value: Any) -> bool:  # noqa: ANN401
    """Whether an item can be repeated in more than one way."""
    return name in _REPEATS and value[1] > 1 and value[0] != value[1]


def _kept_apart(body: Any) -> bool:  # noqa: ANN401
    """Whether a text falls into rounds in one way only.

    Each round begins or ends with a character that the one repeat in it cannot take.
    """
    inner = [value[2] for name, value in _walk(body) if _is_loose(name, value)]
    ends = [(str(op), value) for op, value in (body[0], body[-1])]
    marks = [value for name, value in ends if name == "LITERAL"]
    return len(inner) == 1 and any(not _may_match(inner[0], mark) for mark in marks)


def _may_match(items: Any, character: int) -> bool:  # noqa: ANN401
    return any(
        _takes(str(op), value, character)
        if not _parts(str(op), value)
        else any(_may_match(part, character) for part in _parts(str(op), value))
        for op, value in items
    )


def _takes(name: str, value: Any, character: int) -> bool:  # noqa: ANN401
    """Whether an item that is one character wide can be this character; true when unsure."""
    if name == "LITERAL":
        return bool(value == character)
    if name == "NOT_LITERAL":
        return bool(value != character)
    if name == "RANGE":
        return bool(value[0] <= character <= value[1])
    if name == "CATEGORY":
        kind = str(value).removeprefix("CATEGORY_")
        letter = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}.get(kind.removeprefix("NOT_"), "w")
        letter = letter.upper() if kind.startswith("NOT_") else letter
        return re.fullmatch(f"\\{letter}".encode(), bytes([character])) is not None
    if name == "IN":
        members = [(str(op), item) for op, item in value]
        negated = members[0][0] == "NEGATE"
        return negated != any(_takes(op, item, character) for op, item in members[negated:])
    return True


def _needs_of(items: Iterable[tuple[Any, Any]]) -> _Needs:
    """Return what a sequence of items needs: its parts side by side are joined while few."""
    run = frozenset({""})
    held: list[frozenset[str]] = []
    whole = True
    for op, value in items:
        needs = _needs_of_item(str(op), value)
        if needs.exact is not None and len(run) * len(needs.exact) <= _MAX_CHOICES:
            run = frozenset(a + b for a, b in product(run, needs.exact))
            continue
        whole = False
        held.append(run)
        run = needs.exact if needs.exact is not None else frozenset({""})
        if needs.held is not None:
            held.append(needs.held)
    if whole:
        return _Needs(exact=run)
    return _Needs(held=_best([*held, run]))


def _needs_of_item(name: str, value: Any) -> _Needs:  # noqa: ANN401, PLR0911
    if name == "LITERAL":
        return _Needs(exact=frozenset({chr(value)}))
    if name == "AT":
        return _Needs(exact=frozenset({""}))
    if name == "IN":
        members = [(str(op), item) for op, item in value]
        if len(members) <= _MAX_CLASS and all(op == "LITERAL" for op, _ in members):
            return _Needs(exact=frozenset(chr(item) for _, item in members))
        return _Needs()
    if name == "SUBPATTERN":
        return _needs_of(value[3])
    if name == "BRANCH":
        return _needs_of_branch([_needs_of(part) for part in value[1]])
    if name in _REPEATS:
        low, high, body = value
        inner = _needs_of(body)
        if inner.exact is not None and (low, high) in ((0, 1), (1, 1)):
            return _Needs(exact=inner.exact | ({""} if low == 0 else frozenset()))
        return (
            _Needs(held=inner.exact if inner.exact is not None else inner.held) if low else _Needs()
        )
    return _Needs()


def _needs_of_branch(parts: list[_Needs]) -> _Needs:
    exact = [part.exact for part in parts if part.exact is not None]
    if len(exact) == len(parts) and sum(map(len, exact)) <= _MAX_CHOICES:
        return _Needs(exact=frozenset().union(*exact))
    held: set[str] = set()
    for part in parts:
        best = _best([found for found in (part.exact, part.held) if found])
        if best is None:
            return _Needs()
        held |= best
    return _Needs(held=frozenset(held))


def _best(choices: list[frozenset[str]]) -> frozenset[str] | None:
    """Choose the set whose most common text is rarest; none when all have a text too short."""
    usable = [found for found in choices if min(map(len, found)) >= MIN_LITERAL]
    return max(usable, key=lambda found: (min(map(_rarity, found)), -len(found)), default=None)


def _rarity(text: str) -> int:
    """How rare a text is in logs: small letters and blanks are everywhere."""
    if text.strip() in _COMMON:
        return 1
    return min(_RARE, sum(1 if char.islower() or char == " " else 2 for char in text))
