"""The last step that each rank prints, in texts in which ranks lose a peer or a store.

And the last batch of its epoch, in texts in which ranks wait for others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.steady_steps import STEP

_MAX_WIDTH, _MOST_RANKS = 400, 4096
_HINT = re.compile(rb"Broken pipe|onnection reset|onnection closed|SocketImpl|TCPStore")
_WAITED = re.compile(
    rb"Watchdog caught collective|Timed out waiting|HorovodInternalError|Not all ranks joining"
)
_OWNER = re.compile(
    r"^.{0,60}?(?:\[|\b)(?:global[ _]?)?rank[ _=:#-]{0,2}(\d{1,7})\b", re.IGNORECASE
)
# Of how many: a number alone may be the size of a batch.
_BATCH = re.compile(
    r"\b(?<!micro-)(?:mini-?)?batch\b[ =:#\[]{0,3}(\d{1,9}) ?(?:/|of) ?(\d{1,9})\b(?! [KMG]?i?B)",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"\b(?:epoch|ep)\b[ _=:#\[]{0,3}(\d{1,6})\b", re.IGNORECASE)


def find_rank_batches(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find the last batch of an epoch that each rank says it is at, and of how many.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _WAITED.search(data) is None:
        return
    last: dict[int, TabledSeen] = {}
    for at, whole in enumerate(data.decode("utf-8", errors="replace").split("\n")):
        text = whole[:_MAX_WIDTH].strip()
        owner = _OWNER.match(text)
        batch = _BATCH.search(text, owner.end()) if owner else None
        if owner is None or batch is None or int(owner[1]) > MAX_RANK or len(last) > _MOST_RANKS:
            continue
        epoch = _EPOCH.search(text, owner.end())
        groups = {"own": owner[1], "batch": batch[1], "all": batch[2]}
        groups["epoch"] = epoch[1] if epoch else ""
        last[int(owner[1])] = TabledSeen("table.rank_batch", row + at, LogLine(text), groups)
    yield from last.values()


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
