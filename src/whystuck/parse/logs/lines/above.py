"""What stands above a line in a block of a log, as far as it is looked at, and before its text."""

from __future__ import annotations

from whystuck.parse.logs.search.raw_lines import LINE
from whystuck.parse.logs.search.scan import MAX_LINE

BEFORE_BYTES = 4096
_BEFORE_LINES = 4
_STACK_LINES, _GDB_LINES = 12, 128


def lines_above(behind: bytes, data: bytes, start: int, count: int = _BEFORE_LINES) -> list[bytes]:
    """Return the few lines above a place of a block, and of what stands before the block."""
    text = data[max(0, start - BEFORE_BYTES) : start]
    if start < BEFORE_BYTES:
        text = behind + text
    lines = text.rstrip(b"\r\n").split(b"\n")[-count:]
    return [one.rstrip(b"\r") for one in lines if one]


def count_above(data: bytes, start: int, fresh: int) -> int:
    """Tell how many lines above a stack are of use: gdb prints one for each thread.

    Args:
        data: A block.
        start: Where the stack begins.
        fresh: How many lines above it have not been read with another stack.
    """
    above = data[max(0, start - BEFORE_BYTES) : start]
    blank = above.count(b"\n", len(above.rstrip(b"\r\n"))) - 1
    most = _GDB_LINES if b"LWP" in above else _STACK_LINES
    return max(0, min(most, fresh - max(0, blank)))


def read_raw(data: bytes, start: int) -> str:
    """Return the line at a place of a block, with what stands before its text."""
    end = match.end() if (match := LINE.match(data, start)) else len(data)
    text = data[start : min(end, start + MAX_LINE)].decode("utf-8", errors="replace")
    return text.lstrip("\0").rstrip("\r")
