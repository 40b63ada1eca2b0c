"""Lines that a terminal cut at its width, put together again."""

from __future__ import annotations

from collections import Counter

from whystuck.parse.logs.line_forms import match_prefix

# Terminals are no narrower, and nobody has one that is wider.
_LEAST, _MOST = 60, 400
# So many lines of programs must have been cut.
_FEWEST = 2
# What tables and rules are drawn with.
_DRAWN = "|+-=*#_~ \u2500\u2502"


def find_width(head: bytes) -> int:
    """Return the width at which the lines of a text were cut, 0 where they were not.

    Args:
        head: The text, or its beginning.
    """
    lines = [one.rstrip("\r") for one in head.decode("utf-8", errors="replace").split("\n")]
    known = [(len(line), match_prefix(line) is not None) for line in lines]
    width = max((size for size, is_begun in known if is_begun), default=0)
    if not _LEAST <= width <= _MOST:
        return 0
    cut = Counter(
        is_next_begun
        for line, (size, is_begun), (_, is_next_begun), below in zip(
            lines, known, known[1:], lines[1:], strict=False
        )
        if size == width and is_begun and line[-1] not in _DRAWN and below.strip()
    )
    return width if cut[False] >= _FEWEST and not cut[True] else 0


def join_wrapped(data: bytes, width: int) -> bytes:
    """Join the lines that were cut at a width; blank lines below keep the numbers of the others."""
    joined: list[str] = []
    held: list[str] = []
    for line in data.decode("utf-8", errors="surrogateescape").split("\n"):
        if held and (not line.strip() or match_prefix(line) is not None):
            _release(held, joined)
        held.append(line)
        if len(line.rstrip("\r")) != width or line[-1] in _DRAWN.replace(" ", ""):
            _release(held, joined)
    _release(held, joined)
    return "\n".join(joined).encode("utf-8", errors="surrogateescape")


def _release(held: list[str], joined: list[str]) -> None:
    if held:
        joined += ["".join(held), *[""] * (len(held) - 1)]
        held.clear()
