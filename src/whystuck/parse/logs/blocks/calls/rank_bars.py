"""The last bar of progress of each rank, where others wait for it at their first collective."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_MAX_WIDTH, _MOST_RANKS = 400, 4096
_HINT = re.compile(rb"retrieving ncclUniqueId")
_ENDS = re.compile(r"[\r\n]")
_OWNER = re.compile(
    r"^[\W_]{0,4}(?:global[ _]?)?rank[ _=:#-]{0,2}(?P<own>\d{1,7})\b[\]:) |]{1,4}", re.IGNORECASE
)
# `stats:  52%|#####2    | 1098240/2112000 [29:55<27:37, 611.7traj/s]`, as tqdm draws it
_BAR = re.compile(
    r"(?P<name>[^%|\d][^%|]{0,60}?):? {0,4}(?P<pct>\d{1,3})%\|[^|]{0,60}\| ?"
    r"[\d.]{1,12}[kMGT]?/[\d.]{1,12}[kMGT]? \[(?P<took>[\d:]{4,9})<"
)
# What goes on once there were collectives.
_TRAINS = re.compile(
    r"\b(?:epochs?|train(?:ing)?|steps?|iter\w*|it|batch\w*|eval\w*|valid\w*|test\w*|save|saving"
    r"|checkpoint\w*)\b",
    re.IGNORECASE,
)


def find_rank_bars(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find the last bar of each rank, and how long it had taken.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HINT.search(data) is None:
        return
    last: dict[int, TabledSeen] = {}
    for at, whole in enumerate(data.decode("utf-8", errors="replace").split("\n")):
        text = _ENDS.split(whole.rstrip())[-1][:_MAX_WIDTH].strip()
        owner = _OWNER.match(text)
        bar = _BAR.match(text, owner.end()) if owner else None
        if owner is None or int(owner["own"]) > MAX_RANK or len(last) > _MOST_RANKS:
            continue
        if bar is None or _TRAINS.search(bar["name"]):
            # It says something else, or is past what the others wait for.
            last.pop(int(owner["own"]), None)
            continue
        groups = {"own": owner["own"], "pct": bar["pct"], "took": bar["took"]}
        last[int(owner["own"])] = TabledSeen("table.rank_bar", row + at, LogLine(text), groups)
    yield from last.values()
