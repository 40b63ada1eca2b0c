"""Tracebacks of which the first line is not shown: people cut it, and Python leaves it out.

An error of syntax in the script itself has no heading. What is left of others are their last
frames, above the line of the exception; the name of the thread may stand above those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from whystuck.parse.logs.blocks.stacks.tracebacks import (
    FRAME,
    HEAD,
    MAX_FRAMES,
    Trace,
    add_frame,
    find_raised,
)
from whystuck.parse.logs.lines.lines import LogLine

# So many lines above the line of an exception are looked at.
_MOST_ABOVE = 64
# Below the last frame stand a line of source and its marks, which may be wrapped.
_MOST_SOURCE = 4
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError)(?::|$)")

# Returns so many lines above the one that is read, as they stand there, the last one nearest.
Above = Callable[[int], list[bytes]]


def read_headless(
    line: LogLine, row: int, above: Above, parse: Callable[[bytes], LogLine]
) -> Trace | None:
    """Read the frames above the line of an exception which no heading begins.

    Args:
        line: The line that may name an exception.
        row: Its number.
        above: Returns the lines above it.
        parse: Takes the prefix of a line off.
    """
    raised = find_raised(line.text)
    if raised is None:
        return None
    trace = Trace(row, line, row, raised[0], [raised[1]])
    if not _read_frames(trace, line, above, parse):
        return None
    trace.frames.reverse()
    return trace


def _read_frames(
    trace: Trace, line: LogLine, above: Above, parse: Callable[[bytes], LogLine]
) -> bool:
    """Read frames from the last one on up; return whether there are some, and no heading."""
    is_syntax = _SYNTAX.match(line.text) is not None
    source = 0
    for row, text in _list_own(trace.row, line, above, parse):
        if match := FRAME.match(text):
            if match[3] is None and not is_syntax:
                return False
            add_frame(trace, match[3], match[1], match[2])
            trace.row, source = row, 0
            if match[3] is None or len(trace.frames) >= MAX_FRAMES:
                break
        elif text[:1].isspace() and source < _MOST_SOURCE:
            source += 1
        elif head := HEAD.match(text):
            trace.thread, trace.is_ignored = head[1] or "", head[1] is None
            break
        else:
            return bool(trace.frames) and "Traceback (most recent" not in text
    return bool(trace.frames)


def _list_own(
    row: int, line: LogLine, above: Above, parse: Callable[[bytes], LogLine]
) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of lines of the same writer, the nearest first."""
    for back, raw in enumerate(reversed(above(_MOST_ABOVE)), 1):
        one = parse(raw)
        if one.owner == line.owner:
            yield row - back, one.text
