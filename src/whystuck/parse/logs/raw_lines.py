"""Lines of logs as bytes: their colours and their ends."""

from __future__ import annotations

import re

COLOUR = re.compile(
    rb"\x1b(?:\[[0-9;:?<=>]{0,40}[A-Za-z~]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[()][0-9A-B]|[=>78M])"
)
LINE = re.compile(rb"[^\r\n]*")


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
