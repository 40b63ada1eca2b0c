"""Cells of the rows that people draw: between bars, commas or tabs, or apart by blanks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from whystuck.evidence.ranks import MAX_RANK

MAX_CELLS = 600
_MAX_ROW = 8000
# Bars of Markdown and of boxes.
_BARS = re.compile(r"[|\u2502\u2503\u2551\u2506\u250a]")
# A line that only draws: `|---:|`, `+----+`, `====`, a border of a box
_DRAWN = re.compile(r"[\s|+:=~_.\u2500-\u257f-]*")
# What people put beside a number to point at it, and Markdown around it.
_POINTERS = re.compile(
    r"[*`!\u2020\u2021\u25b2\u25bc\u2191\u2193\u26a0\ufe0f\U0001f525\U0001f534]+"
    r"|\s{1,8}(?:<[-=]{1,4}|\u2190).{0,200}$"
)
_WIDE = re.compile(r"\s{2,}|\t")
_ANY = re.compile(r"[\s,;|\u2502\u2503\u2551]+")
# A unit in brackets belongs to the name before it.
_APART = re.compile(r"(?<=\S)\s+(?=[(\[][^)\]\s]{1,8}[)\]])")
_FILLED = re.compile(r"(?<=\S) ?[/@]\s{0,8}(?=\S)")
_SPACED = re.compile(r"[\s|,;]+")
_PARTED = re.compile(r"(?<=\S) ?/ ?(?=\S)")

# `rang`, `rango`, and as Chinese, Japanese, Korean and Russian call ranks and processes
ABROAD = (
    *("rang", "rango", "\u8fdb\u7a0b", "\u79e9", "\u30e9\u30f3\u30af", "\ub7ad\ud06c"),
    "\u0440\u0430\u043d\u0433",
)
_WORDS = rf"(?:global[ _-]?)?rank|rk|r|worker|proc|process|{'|'.join(ABROAD)}"
_DEVICES = r"gpu|cuda|npu|hpu|xpu|dev|device|\u663e\u5361|\u5361"
# What of several measurements a column has.
_MIDDLE = r"(?:(?:p50|mean|avg|median|med)[ _]{1,4})?"
_NAMED = re.compile(
    rf"{_MIDDLE}[\[(]?(?:(?P<word>{_WORDS})|(?P<device>{_DEVICES}))[ _#:=-]?"
    r"(?P<number>\d{1,7})[\])]?(?:\s?[:,_-]?\s?(?P<rest>[A-Za-z(\[].{0,40})|:)?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[\[(]?#?(\d{1,7})[\])]?:?")
_RANGE = re.compile(
    r"(?:ranks?|r)? ?(\d{1,7}) ?(?:-|\u2013|\.{2,3}|to) ?(?:rank|r)?(\d{1,7})", re.IGNORECASE
)
_MOST_IN_RANGE = 1024
_HEAD = re.compile(
    rf"(?P<word>(?:{_WORDS})(?:[ _]?(?:id|idx|no|#))?s?)|(?P<device>(?:{_DEVICES})"
    r"(?:[ _]?(?:id|idx|index|#))?s?)",
    re.IGNORECASE,
)
# A number, also with its unit, its spread or its share behind it.
_VALUE = re.compile(
    r"[~\u2248<>]?\s?(?P<number>[-+]?(?:\d{1,3}(?:,\d{3})+|\d{1,20})(?:\.\d{1,15})?(?:e[-+]?\d{1,3})?)"
    r"\s?(?P<unit>ms|msec|us|\u00b5s|s|secs?)?(?:\s?(?:\u00b1|\+/?-|\().{0,30})?",
    re.IGNORECASE,
)


class Owner(NamedTuple):
    """Whose a cell is: a rank, or a device of which nobody says that it is one."""

    rank: int
    is_device: bool
    rest: str = ""


def is_drawn(text: str) -> bool:
    """Whether a line only draws, or is empty."""
    return _DRAWN.fullmatch(text[:_MAX_ROW]) is not None


def _split_bars(text: str) -> list[str]:
    cells = [cell.strip() for cell in _BARS.split(text)]
    # Bars at the ends of a row have nothing outside.
    return cells[not cells[0] : len(cells) - (not cells[-1])] if len(cells) > 1 else []


def _split_commas(text: str) -> list[str]:
    mark = next((one for one in ("\t", ";", ",") if one in text), "")
    return [cell.strip() for cell in text.split(mark)] if mark else []


def _split_wide(text: str) -> list[str]:
    return _WIDE.split(text.strip(" \t|"))


def _split_any(text: str) -> list[str]:
    joined = _PARTED.sub("/", _APART.sub("", text))
    return _ANY.split(joined.strip(" \t|,;\u2502\u2503\u2551"))


def split_pairs(text: str) -> list[str]:
    """Split a row whose cells have two numbers each, filled up by blanks: ``8326/ 430``."""
    return [cell for cell in _SPACED.split(_FILLED.sub("/", text).strip(" \t|,;")) if cell]


def split_outside(text: str, marks: str) -> list[str]:
    """Split a row at marks that are in no brackets.

    Lists in cells have blanks and commas of their own: `[[4096, 512]]`.
    """
    cells, begin, depth = list[str](), 0, 0
    for at, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth = max(0, depth - 1)
        elif not depth and char in marks:
            cells.append(text[begin:at])
            begin = at + 1
    cells.append(text[begin:])
    return [cell.strip() for cell in cells]


# The surest first.
WAYS: tuple[Callable[[str], list[str]], ...] = (_split_bars, _split_commas, _split_wide, _split_any)


def split_cells(text: str, way: Callable[[str], list[str]]) -> list[str]:
    """Return the cells of a row that is written in some way, without what points at them."""
    if len(text) > _MAX_ROW:
        return []
    return way(_POINTERS.sub("", text).rstrip())[:MAX_CELLS]


def read_owner(cell: str) -> Owner | None:
    """Return the rank that a cell names by a word: ``r0``, ``rank 0``, ``[gpu0]``, ``r0: ms``."""
    match = _NAMED.fullmatch(cell)
    if match is None or int(match["number"]) > MAX_RANK:
        return None
    return Owner(int(match["number"]), match["device"] is not None, (match["rest"] or "").strip())


def read_number(cell: str) -> int:
    """Return the number of a rank in a column of ranks; -1 where a cell is none."""
    if owner := read_owner(cell):
        return -1 if owner.rest else owner.rank
    match = _NUMBER.fullmatch(cell)
    return int(match[1]) if match and int(match[1]) <= MAX_RANK else -1


def list_numbers(cell: str) -> range:
    """Return the ranks of a cell in a column of ranks, which may tell of several: ``0-14``."""
    if (match := _RANGE.fullmatch(cell)) and int(match[2]) <= MAX_RANK:
        numbers = range(int(match[1]), int(match[2]) + 1)
        return numbers if 0 < len(numbers) <= _MOST_IN_RANGE else range(0)
    number = read_number(cell)
    return range(number, number + 1) if number >= 0 else range(0)


def read_head(cell: str) -> str:
    """Return ``rank`` or ``device`` where a cell heads a column of them, else an empty text."""
    match = _HEAD.fullmatch(cell)
    return "" if match is None else "device" if match["device"] else "rank"


def read_value(cell: str) -> tuple[float, str] | None:
    """Return the number in a cell, and its unit in small letters; None where it has none."""
    match = _VALUE.fullmatch(cell)
    if match is None:
        return None
    return float(match["number"].replace(",", "")), (match["unit"] or "").lower()


def split_parts(text: str) -> list[str]:
    """Return the parts of a cell that has two: ``tok / ms``, ``8120 / 402``."""
    return [part.strip() for part in text.split("/")]
