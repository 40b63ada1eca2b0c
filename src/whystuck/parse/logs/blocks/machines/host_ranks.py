"""Lists of hosts with their ranks: `n1 -> rank 0, n2 -> rank 1`, `n1: ranks 0-7; n2: ranks 8-15`.

Only texts of the size that people paste are looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_MAX_WIDTH, _MOST = 2000, 256
_MOST_ON_HOST = 64
_HINT = re.compile(rb"(?:->|=>|=|:|\xe2\x86\x92) ?ranks? ?[=:]? ?\d")
_PAIR = re.compile(
    r"(?<![\w./-])(?P<host>(?=[\w.-]{0,60}\d)[A-Za-z][\w.-]{0,62}) ?(?:->|=>|=|:|\u2192) ?"
    r"ranks?[ =:]{1,2}(?P<first>\d{1,7})(?: ?(?:-|\u2013|\.\.|to) ?(?P<last>\d{1,7}))?(?![\w.])"
)
# What is counted, and no host.
_COUNTED = re.compile(
    r"(?:rank|local|gpu|cuda|npu|device|dev|card|pid|step|epoch|task|group|pg|tp|pp|dp|ep|cp"
    r"|stage|layer|shard|thread|worker|proc|process)[_.-]?\d",
    re.IGNORECASE,
)
_LEAST = 2


def find_host_ranks(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find lines that list hosts with their ranks, two hosts or more.

    Args:
        data: The text.
        row: The number of its first line.
    """
    found = 0
    for at, raw in enumerate(data.split(b"\n")) if _HINT.search(data) else ():
        if found >= _MOST or not _HINT.search(raw):
            continue
        text = raw[:_MAX_WIDTH].decode("utf-8", errors="replace")
        told = {one["host"]: one for one in _PAIR.finditer(text)}
        seats = {host: _read_range(one) for host, one in told.items() if not _COUNTED.match(host)}
        ranks = [rank for first, last in seats.values() for rank in range(first, last + 1)]
        if len(seats) < max(_LEAST, len(told)) or len(set(ranks)) < len(ranks) or not ranks:
            continue
        for host, (first, last) in seats.items():
            found += 1
            groups = {"host": host, "first": str(first), "last": str(last)}
            yield TabledSeen("table.host_ranks", row + at, LogLine(text.strip()), groups)


def _read_range(match: re.Match[str]) -> tuple[int, int]:
    """Return the first and the last rank of a host; none where they make no sense."""
    first = int(match["first"])
    last = int(match["last"] or first)
    is_well = 0 <= last - first < _MOST_ON_HOST and last <= MAX_RANK
    return (first, last) if is_well else (0, -1)
