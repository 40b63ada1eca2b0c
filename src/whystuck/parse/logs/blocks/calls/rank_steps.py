"""The last step that each rank prints, in texts in which ranks lose a peer or a store."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.steady_steps import STEP

_MAX_WIDTH, _MOST_RANKS = 400, 4096
_HINT = re.compile(rb"Broken pipe|onnection reset|onnection closed|SocketImpl|TCPStore")
_OWNER = re.compile(
    r"^.{0,60}?(?:\[|\b)(?:global[ _]?)?rank[ _=:#-]{0,2}(\d{1,7})\b", re.IGNORECASE
)


def find_rank_steps(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find the last step of each rank.

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
        step = STEP.search(text, owner.end()) if owner else None
        number = (step[1] or step[2]) if step else None
        if owner is None or not number or int(owner[1]) > MAX_RANK or len(last) > _MOST_RANKS:
            continue
        groups = {"own": owner[1], "step": number}
        last[int(owner[1])] = TabledSeen("table.rank_step", row + at, LogLine(text), groups)
    yield from last.values()
