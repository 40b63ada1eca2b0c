"""Entries of flight recorders as dicts or pairs: `rank 3 {'collective_seq_id': 117, ...}`.

The names in them are those of dumps. Whose entry it is, the beginning of the line tells, or a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.cells import split_outside
from whystuck.parse.logs.lines.lines import LogLine

_MOST_ENTRIES = 512
_MOST_FRAMES = 64
_LABEL = re.compile(
    r"^[\s\[(|*>-]{0,8}(?:global[ _]?)?(?:rank[ _]?|r)(?P<own>\d{1,7})\b[\])]?"
    r"\s{0,4}(?:->|=>|[:=|,>-])?\s{0,4}",
    re.IGNORECASE,
)
_PAIR = re.compile(
    r"^\s{0,8}['\"]?(?P<key>[A-Za-z_]\w{0,40})['\"]?\s{0,2}[:=]\s{0,4}(?P<value>\S.*)$"
)
_FRAME = re.compile(
    r"['\"]name['\"]: ?['\"](?P<name>[^'\"]{1,200})['\"], "
    r"['\"]filename['\"]: ?['\"](?P<file>[^'\"]{1,300})['\"], ['\"]line['\"]: ?(?P<line>\d{1,9})"
)
_OWN = ("rank", "global_rank")


def read_pairs(line: LogLine) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the dicts of a line, or its pairs, each with the rank that it is of.

    Args:
        line: The line; a prefix may name the rank.

    Yields:
        The rank as a text, and the values by the names of their keys, in small letters.
    """
    label = _LABEL.match(line.text)
    own = label["own"] if label else str(line.writer) if line.writer >= 0 else ""
    rest = line.text[label.end() :] if label else line.text
    for parts in _list_dicts(rest) if "{" in rest else [split_outside(rest, " ,;|\t")]:
        pairs = {
            match["key"].lower(): match["value"].strip(" '\"")
            for part in parts
            if (match := _PAIR.match(part))
        }
        rank = next((pairs[key] for key in _OWN if key in pairs), own)
        if rank.isdecimal() and int(rank[:8]) <= MAX_RANK:
            yield rank, pairs


def _list_dicts(text: str) -> Iterator[Sequence[str]]:
    """Yield the pairs of each dict that is in no other one."""
    depth, begin, count = 0, 0, 0
    for at, char in enumerate(text):
        if char == "{":
            begin = at if not depth else begin
            depth += 1
        elif char == "}" and depth:
            depth -= 1
            if not depth and count < _MOST_ENTRIES:
                count += 1
                yield split_outside(text[begin + 1 : at], ",")


def read_frames(text: str) -> str:
    """Return the frames in the value of a dict, the innermost first, as sites are written."""
    frames = (
        f"{one['file']}\t{one['line']}\t{one['name']}"
        for _, one in zip(range(_MOST_FRAMES), _FRAME.finditer(text), strict=False)
    )
    return "\n".join(frames)
