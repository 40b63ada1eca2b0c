"""Hashes over weights of several ranks in one line: `step 400 r0 c2d05e r1 c2d05e r2 6611f8`.

The lines above say of what they are. Only texts of the size that people paste are looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.rank_tables.rank_values import CELL
from whystuck.parse.logs.blocks.tables.column_names import tells_sums
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_MAX_WIDTH, _MOST_ROWS = 2000, 400
_HINT = re.compile(rb"(?i)\b(?:hash(?:es)?|fingerprints?|digests?|crc(?:32)?|md5|sha(?:1|256))\b")
_HEX = re.compile(r"[0-9a-f]{6,64}", re.IGNORECASE)
_LEAST_CELLS = 3
# So far above them stands what says of what they are.
_NEAR_LINES = 12


def find_rank_hashes(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find lines with the hashes of several ranks.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HINT.search(data) is None:
        return
    left = found = 0
    for at, raw in enumerate(data.split(b"\n")):
        text = raw[:_MAX_WIDTH].decode("utf-8", errors="replace")
        left -= 1
        if _HINT.search(raw) and tells_sums([text]):
            left = _NEAR_LINES
        cells = CELL.findall(text) if left > 0 and found < _MOST_ROWS else []
        if len({rank for rank, _ in cells}) < max(_LEAST_CELLS, len(cells)):
            continue
        if not all(_HEX.fullmatch(value) and int(rank) <= MAX_RANK for rank, value in cells):
            continue
        left, found = _NEAR_LINES, found + 1
        for rank, value in cells:
            groups = {"table": str(row + at), "what": "sum", "own": rank, "sum": value.lower()}
            yield TabledSeen("table.value", row + at, LogLine(text.strip()), groups)
