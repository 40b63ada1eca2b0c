"""The last shape that each rank prints as bare numbers, in texts where two sizes met in gloo."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_MAX_WIDTH, _MOST_RANKS = 400, 4096
_HINT = re.compile(rb"op\.preamble\.length <= op\.nbytes")
_OWNER = re.compile(
    r"^[^(\[]{0,40}?(?:\[|\b)(?:global[ _]?)?rank[ _=:#-]{0,2}(\d{1,7})\b", re.IGNORECASE
)
# `gather logits (32, 1000) float32`, `x [8,1,512]`, `sends 32x1000`
_SHAPE = re.compile(
    r"(?<![\w.(\[])[(\[]\s?(?P<dims>\d{1,9}(?:\s?,\s?\d{1,9}){1,5}),?\s?[)\]]"
    r"|(?<![\w.])(?P<times>\d{1,7}(?:[x\u00d7]\d{1,7}){1,5})(?![\w.])"
)
# Lines with these words are known without it.
_KNOWN = re.compile(r"shape|Size\(")


def find_rank_shapes(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find the last line of each rank that holds one shape.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HINT.search(data) is None:
        return
    last: dict[int, TabledSeen] = {}
    for at, whole in enumerate(data.decode("utf-8", errors="replace").split("\n")):
        text = whole[:_MAX_WIDTH].strip()
        owner = _OWNER.match(text)
        if owner is None or int(owner[1]) > MAX_RANK or len(last) > _MOST_RANKS:
            continue
        shapes = [] if _KNOWN.search(text) else [*_SHAPE.finditer(text, owner.end())]
        if len(shapes) == 1:
            dims = ",".join(re.findall(r"\d+", shapes[0][0]))
            groups = {"own": owner[1], "dims": dims}
            last[int(owner[1])] = TabledSeen("table.rank_shape", row + at, LogLine(text), groups)
    yield from last.values()
