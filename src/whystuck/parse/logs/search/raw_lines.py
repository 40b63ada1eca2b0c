"""Lines of logs as bytes: their colours and their ends."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

COLOUR = re.compile(
    rb"\x1b(?:\[[0-9;:?<=>]{0,40}[A-Za-z~]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[()][0-9A-B]|[=>78M])"
)
LINE = re.compile(rb"[^\r\n]*")
_FEED, _RETURN = 10, 13

Places = NDArray[np.int64]


def skip_end(data: bytes, place: int, row: int) -> tuple[int, int]:
    """Return the place and the row behind the end of a line, which stands at a place."""
    if data[place : place + 1] == b"\r" and data[place + 1 : place + 2] != b"\n":
        return place + 1, row
    if data[place : place + 1] == b"\r":
        place += 1
    return place + 1, row + 1


def split_lines(data: bytes) -> list[bytes]:
    """Return the first lines of some data, without colours."""
    return COLOUR.sub(b"", data).split(b"\n")[:400]


class LineTable:
    """Where the lines of some data are: all found at once, in half the time to count them."""

    def __init__(self, data: bytes) -> None:
        """Find the ends of all lines.

        Args:
            data: The lines, some of which may end with a carriage return alone.
        """
        self._size = len(data)
        values = np.frombuffer(data, np.uint8)
        is_feed = values == _FEED
        self._feeds = np.flatnonzero(is_feed)
        self._breaks = self._feeds
        if b"\r" in data:
            self._breaks = np.flatnonzero(is_feed | (values == _RETURN))

    def count_feeds(self, begin: int, end: int) -> int:
        """Return how many line feeds stand from a place on, before another one."""
        first, last = self._feeds.searchsorted((begin, end))
        return int(last - first)

    def find_lines(self, places: Places) -> tuple[Places, Places]:
        """Return where the lines begin and end that hold some places."""
        behind = self._breaks.searchsorted(places)
        edges = np.concatenate(((-1,), self._breaks, (self._size,)))
        return edges[behind] + 1, edges[behind + 1]
