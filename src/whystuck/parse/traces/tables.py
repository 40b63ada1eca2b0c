"""Texts and numbers of a trace, as they come, to positions and whole numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import UNKNOWN, Category
from whystuck.parse.traces.schema import CATEGORIES

_WHOLE = re.compile(r"[+-]?\d{1,19}|0[xX][0-9a-fA-F]{1,16}")
_NUMBER_AT_END = re.compile(r"(?:stream|device|gpu)\D{0,3}(\d{1,9})\s*", re.IGNORECASE)
_INT32 = np.iinfo(np.int32)
_INT64 = np.iinfo(np.int64)
# Streams that are told by a text or an address get numbers from here on.
_FIRST_MADE_STREAM = 1 << 30
_NO_STREAM = ((1 << 32) - 1, (1 << 64) - 1)
MAX_DEVICE = np.iinfo(np.int16).max


class Positions(dict[Any, int]):
    """Gives each new key the next position."""

    def __missing__(self, key: Any) -> int:  # noqa: ANN401 - a text or a number
        position = self[key] = len(self)
        return position


class CategoryCodes(dict[str, int]):
    """Gives the `Category` of each name of a category, of old and new versions.

    ``has_old`` tells whether there was a name of an old version, such as ``Kernel``.
    """

    has_old = False

    def __missing__(self, name: str) -> int:
        self.has_old |= not name.islower() and name.lower() in CATEGORIES and name != "Trace"
        code = self[name] = CATEGORIES.get(name.lower(), Category.OTHER)
        return code


class Ids(dict[Any, int]):
    """Process and thread ids: numbers as they are, texts as numbers of their own below -1."""

    _made = 0

    def __missing__(self, value: Any) -> int:  # noqa: ANN401 - a number or a text
        number = to_whole(value)
        if number is None or not UNKNOWN <= number <= _INT32.max:
            number = -2 - self._made
            self._made += 1
        self[value] = number
        return number

    def convert(self, values: Sequence[Any]) -> NDArray[np.int32]:
        """Return the number of each."""
        try:
            numbers = np.fromiter(values, np.int64, len(values))
        except (TypeError, ValueError, OverflowError):
            return np.fromiter(map(self.__getitem__, values), np.int32, len(values))
        if len(numbers) and (numbers.min() < UNKNOWN or numbers.max() > _INT32.max):
            return np.fromiter(map(self.__getitem__, values), np.int32, len(values))
        return numbers.astype(np.int32)


class Streams(dict[Any, int]):
    """Streams: numbers as they are, ``stream 7`` as 7, addresses as numbers of their own.

    Other texts tell no stream: -1.
    """

    def __missing__(self, value: Any) -> int:  # noqa: ANN401 - a number or a text
        number = to_whole(value)
        if number is None and isinstance(value, str) and (hit := _NUMBER_AT_END.fullmatch(value)):
            number = int(hit[1])
        if number is None or value in _NO_STREAM:
            number = UNKNOWN
        elif not UNKNOWN <= number < _FIRST_MADE_STREAM:
            number = _FIRST_MADE_STREAM + len(self)
        self[value] = number
        return number


class Devices(dict[Any, int]):
    """Devices: numbers as they are, ``cuda:1`` as 1, all else unknown."""

    def __missing__(self, value: Any) -> int:  # noqa: ANN401 - a number or a text
        number = to_whole(value)
        if number is None and isinstance(value, str) and ":" in value:
            number = to_whole(value.rpartition(":")[2])
        is_known = number is not None and 0 <= number <= MAX_DEVICE
        self[value] = number if number is not None and is_known else UNKNOWN
        return self[value]


class Texts(dict[Any, int]):
    """Positions of texts and of JSON, told apart by their bytes in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = Positions()

    def __missing__(self, raw: bytes) -> int:
        text = bytes(raw)
        try:
            value = msgspec.json.decode(text) if text.startswith(b'"') else None
            if not isinstance(value, str):
                value = msgspec.json.format(text, indent=-1).decode("utf-8", "replace")
        except ValueError:
            value = text.decode("utf-8", "replace")
        position = self[text] = self.positions[value]
        return position


def to_whole(value: object) -> int | None:
    """Read a whole number, also from a text; None when it is none."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        text = value.strip()
        return int(text, 16) if text[:2] in ("0x", "0X") else int(text)
    return None


def whole_numbers(values: Sequence[Any]) -> NDArray[np.int64]:
    """Return whole numbers, -1 for what is none or does not fit."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter(map(_to_int64, values), np.int64, len(values))


def _to_int64(value: object) -> int:
    number = to_whole(value)
    fits = number is not None and _INT64.min <= number <= _INT64.max
    return number if number is not None and fits else UNKNOWN


def read_numbers(values: Sequence[Any]) -> tuple[list[int] | None, NDArray[Any]]:
    """Read numbers, whole or real.

    Args:
        values: Numbers, or texts of whole ones.

    Returns:
        Which values are numbers, None for all of them, and these as int64 or float64.
    """
    try:
        numbers = np.array(values)
    except (TypeError, ValueError, OverflowError):
        numbers = np.array([None])
    if numbers.dtype in (np.int64, np.float64):
        return None, numbers
    places, kept = [], []
    for place, value in enumerate(values):
        number = value if isinstance(value, float) else to_whole(value)
        if number is not None and abs(number) <= _INT64.max:
            places.append(place)
            kept.append(number)
    is_real = any(isinstance(number, float) for number in kept)
    return places, np.array(kept, dtype=np.float64 if is_real else np.int64)
