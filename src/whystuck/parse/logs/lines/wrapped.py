"""Lines that a terminal cut at its width, put together again, and records of several lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from whystuck.parse.logs.lines.line_forms import match_prefix
from whystuck.parse.logs.lines.lines import LogLine

# Terminals are no narrower, and nobody has one that is wider.
_LEAST, _MOST = 60, 400
# So many lines of programs must have been cut.
_FEWEST = 2
# What people write themselves may be longer.
_MOST_LONGER = 8
_DIGITS = re.compile(r"\d+")
_BEGIN = 5
# A record of a logger with more lines is no traceback.
_MOST_IN_RECORD = 400
# A terminal cuts words; what a program ends a line with is the end of one.
_INSIDE = re.compile(r"[a-z][a-z]|[A-Z]\w|\d\d")
# Records of torch end with how far a rank came, and are longer than what people let stand in one
# line: mail programs and editors cut them between words.
AT_WORDS = -1
_ENDED = re.compile(r"last completed (?:NCCL )?work: -?\d")
_WHOLE = re.compile(rf"[Ll]ast enqueued (?:NCCL )?work: -?\d{{1,18}}, {_ENDED.pattern}")
_APART = re.compile(r"( work: -?\d{1,17}) (?=\d)")
_CUT_COUNTER = re.compile(r" work: -?\d{1,17}$")
_MOST_IN_STATUS = 6
# What tables and rules are drawn with.
_DRAWN = "|+-=*#_~ \u2500\u2502"


def find_width(head: bytes) -> int:
    """Return the width at which the lines of a text were cut, 0 where they were not.

    It is `AT_WORDS` where records of torch alone are cut, anywhere.

    Args:
        head: The text, or its beginning.
    """
    lines = head.decode("utf-8", errors="replace").replace("\r\n", "\n").split("\n")
    width = _find_width(lines)
    records = [
        "".join(lines[at : at + count + 1])
        for at in range(len(lines))
        if (count := _count_rest(lines, at))
    ]
    are_whole = width and all(map(_WHOLE.search, records))
    return width if are_whole or not records else AT_WORDS


def _find_width(lines: Sequence[str]) -> int:
    sizes = Counter(map(len, lines))
    width = max((size for size in sizes if sizes[size] >= _FEWEST and size <= _MOST), default=0)
    if width < _LEAST:
        return 0
    # To take a prefix off takes a while: most logs are done with by the lengths of their lines.
    longer = [line for line in lines if len(line) > width]
    if len(longer) > _MOST_LONGER or any(map(_begins, longer)):
        return 0
    pairs = [(line, below) for line, below in pairwise(lines) if below.strip()]
    ends = [pair for pair in pairs if len(pair[0]) == width and pair[0][-1] not in _DRAWN]
    cut = [below for _, below in ends]
    if (
        not any(_INSIDE.fullmatch(line[-1] + below[0]) for line, below in ends)
        or len(cut) < _FEWEST
        or any(map(_begins, cut))
    ):
        return 0
    # The rest of a line begins with any part of it, and lines that are whole do so alike.
    whole = {_mask(below) for line, below in pairs if len(line) != width}
    is_known = any(_mask(below) in whole for below in cut)
    begun = sum(len(line) == width and _begins(line) for line, _ in pairs)
    return width if begun >= _FEWEST and not is_known else 0


def _begins(line: str) -> bool:
    """Tell whether a program began a line: by a prefix, or as torch names a group of ranks."""
    return line.startswith("[PG ") or match_prefix(line) is not None


def _mask(line: str) -> str:
    return _DIGITS.sub("0", line.lstrip()[:_BEGIN])


def join_wrapped(data: bytes, width: int) -> bytes:
    """Join the lines that were cut at a width; blank lines below keep the numbers of the others."""
    if width == AT_WORDS:
        return _join_records(data)
    joined: list[str] = []
    held: list[str] = []
    for line in data.decode("utf-8", errors="surrogateescape").split("\n"):
        if held and (not line.strip() or _begins(line)):
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


def _count_rest(lines: Sequence[str], at: int) -> int:
    """Count the lines below one that are the rest of what torch tells of a group of ranks."""
    if "[PG " not in lines[at] or (_ENDED.search(lines[at]) and not _is_cut(lines, at)):
        return 0
    for count in range(1, min(_MOST_IN_STATUS, len(lines) - at)):
        below = lines[at + count]
        if not below.strip() or _begins(below):
            return 0
        if _ENDED.search(_join_words(lines[at : at + count + 1])):
            return count + _is_cut(lines, at + count)
    return 0


def _is_cut(lines: Sequence[str], at: int) -> bool:
    """Tell whether a line ends inside the number of an op."""
    has_more = at + 1 < len(lines) and re.match(r"\d{1,9}(?:\D|$)", lines[at + 1]) is not None
    return has_more and _CUT_COUNTER.search(lines[at].rstrip("\r")) is not None


def _join_words(lines: Sequence[str]) -> str:
    """Join the parts of a record: between words, or inside one where that alone can be read."""
    spaced = _APART.sub(r"\1", " ".join(line.strip() for line in lines))
    return spaced if _WHOLE.search(spaced) else "".join(line.rstrip("\r") for line in lines)


def _join_records(data: bytes) -> bytes:
    lines = data.decode("utf-8", errors="surrogateescape").split("\n")
    joined: list[str] = []
    while len(joined) < len(lines):
        at = len(joined)
        count = _count_rest(lines, at)
        parts = lines[at : at + count + 1]
        joined += [_join_words(parts) if count else lines[at], *[""] * count]
    return "\n".join(joined).encode("utf-8", errors="surrogateescape")


def split_record(line: LogLine) -> list[LogLine]:
    """Return the lines that a record of a logger holds as one text, as that of a traceback."""
    if "\n" not in line.text:
        return [line]
    return [replace(line, text=text) for text in line.text.split("\n", _MOST_IN_RECORD)]
