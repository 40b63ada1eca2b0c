"""Where events of a trace begin and end in its bytes, whatever they hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.parse.traces.source import Source

_LEARN_BYTES = 1 << 16
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_STEPS = np.zeros(256, dtype=np.int8)
_STEPS[[ord("{"), ord("[")]] = 1
_STEPS[[ord("}"), ord("]")]] = -1


@dataclass(frozen=True)
class Layout:
    """Values of a list: where each whole one starts and ends, and where the list is closed.

    ``close`` is the position of the bracket that closes it, -1 when it lies further on.
    """

    start: NDArray[np.intp]
    end: NDArray[np.intp]
    close: int


def find_values(text: bytes) -> Layout:
    """Find the objects and lists in the inner text of a list or an object.

    Args:
        text: JSON that begins outside of strings and inside one list or object. It may end
            anywhere.

    Returns:
        Where they lie. Brackets in strings do not count.
    """
    data = np.frombuffer(text, dtype=np.uint8)
    at = np.flatnonzero(_STEPS[data])
    quotes = _find_quotes(data)
    at = at[np.searchsorted(quotes, at) % 2 == 0]
    step = _STEPS[data[at]]
    depth = np.cumsum(step, dtype=np.int64)
    outside = np.flatnonzero(depth < 0)
    close = -1
    if len(outside):
        close = int(at[outside[0]])
        at, step, depth = at[: outside[0]], step[: outside[0]], depth[: outside[0]]
    start = at[(step > 0) & (depth == 1)]
    end = at[(step < 0) & (depth == 0)] + 1
    return Layout(start[: len(end)], end, close)


def _find_quotes(data: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Return where strings begin and end, in turn."""
    quotes = np.flatnonzero(data == _QUOTE)
    slashes = np.flatnonzero(data == _BACKSLASH)
    if not len(slashes):
        return quotes
    # A quote is part of the string behind an odd number of backslashes.
    first = np.r_[True, np.diff(slashes) > 1]
    begin = slashes[np.maximum.accumulate(np.where(first, np.arange(len(slashes)), 0))]
    run = slashes - begin + 1
    place = np.searchsorted(slashes, quotes - 1)
    place = np.minimum(place, len(slashes) - 1)
    is_behind = slashes[place] == quotes - 1
    is_part: NDArray[np.bool_] = is_behind & (run[place] % 2 == 1)
    return quotes[~is_part]


class EventCutter:
    """Finds a place between two events quickly, from how those before were parted."""

    def __init__(self) -> None:
        self._between = b""

    def guess(self, source: Source) -> int:
        """Guess where the last whole event ends that another one follows.

        Args:
            source: Events, with what parts them, from the start of one on.

        Returns:
            The position behind it, or 0. It is right when what lies before it can be decoded.
        """
        if not self._between:
            self._learn(source.head(_LEARN_BYTES))
        if not self._between:
            return 0
        return source.rfind(self._between) + 1

    def forget(self) -> None:
        """Learn again from the next text."""
        self._between = b""

    def _learn(self, text: bytes) -> None:
        layout = find_values(text)
        if len(layout.start) > 1:
            second = int(layout.start[1])
            # With the quote of its first key, so that an event without any does not fit.
            quote = text.find(b'"', second)
            if 0 <= quote < second + 64 and not text[second + 1 : quote].strip():
                self._between = text[int(layout.end[0]) - 1 : quote + 1]
