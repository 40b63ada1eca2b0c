"""H118 by the sizes of shards: that of one rank still grows where those of all others are whole.

Writers of distributed checkpoints name the file of each rank by its number. Ranks of one model
write about as much, so a file that is far smaller and was seen to grow is of a rank that is slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from statistics import median

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import BUSY, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks

# `__3_0.distcp` of torch, by the rank and the number of its file.
_SHARD = re.compile(r"^__(\d{1,7})_\d{1,4}\.distcp(?:\.tmp)?$")
_LEAST_WHOLE = 2
# Shards of one model differ by less.
_SMALL, _ALIKE = 0.8, 0.9
# Those of two steps differ by some bytes, which is no growth.
_LEAST_GROWN = 0.01
_MB = 1e6
_DAY_S = 86_400
_MAX_LINES = 6


def list_shards(view: LogView) -> dict[int, list[LogEvent]]:
    """List the sizes of the one shard that each rank has; a rank with several has none."""
    shards: dict[int, dict[str, list[LogEvent]]] = {}
    for event in view.list_signatures("table.size"):
        name = PurePosixPath(event.groups.get("file") or "").name
        match = _SHARD.match(name)
        if match is not None and int(match[1]) <= MAX_RANK:
            shards.setdefault(int(match[1]), {}).setdefault(name, []).append(event)
    return {rank: next(iter(files.values())) for rank, files in shards.items() if len(files) == 1}


def make_lagging_shards(view: LogView) -> Iterator[Case]:
    """Make the case of a rank whose shard grows while those of the others are whole."""
    lines = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    raised = tuple(item for item in view.exceptions if is_timeout(item))
    if not (lines or raised):
        return
    shards = list_shards(view)
    growing = tuple(sorted(rank for rank, looks in shards.items() if _grows(looks)))
    whole = [_read(looks[-1]) for rank, looks in shards.items() if rank not in growing]
    waiting = {*list_ranks(lines), *list_ranks(raised)} - {-1}
    if not growing or len(whole) < max(_LEAST_WHOLE, len(growing) + 1) or waiting & {*growing}:
        return
    usual = median(whole)
    largest = max(_read(shards[rank][-1]) for rank in growing)
    grown = min(_read(shards[rank][-1]) - _read(shards[rank][0]) for rank in growing)
    if largest > _SMALL * usual or min(whole) < _ALIKE * usual or grown < _LEAST_GROWN * usual:
        return
    victims = tuple(sorted(waiting))
    rates = [rate for rank in growing if (rate := _find_rate(shards[rank]))]
    pace = f" by {min(rates):.0f} MB/s" if rates else ""
    yield Case(
        code=codes.CHECKPOINT_SLOW,
        summary=f"the shard of {name_ranks(growing)} has {largest / usual:.0%} of the size of the "
        f"others, which are whole, and grew{pace} between two looks; "
        f"{name_ranks(victims) if victims else 'others'} waited for that until a time limit",
        tier=BUSY,
        ranks=growing,
        victims=victims,
        lines=(*(shards[rank][-1] for rank in growing), *lines)[:_MAX_LINES],
        exceptions=raised,
        time=find_time(lines, raised),
        confidence=Confidence.LIKELY,
        details={"state": "running"},
        remedies=("see how fast the host of this rank writes there: mount, network, local disk",),
    )


def _read(event: LogEvent) -> int:
    return int(event.groups["bytes"])


def _grows(looks: list[LogEvent]) -> bool:
    sizes = [_read(one) for one in looks]
    return len(sizes) > 1 and sizes == sorted(set(sizes))


def _find_rate(looks: list[LogEvent]) -> float:
    """Return the MB that were written each second, 0 where the looks have no times."""
    first, last = (int(one.groups["s"]) for one in (looks[0], looks[-1]))
    span_s = (last - first) % _DAY_S if min(first, last) >= 0 else 0
    return (_read(looks[-1]) - _read(looks[0])) / span_s / _MB if span_s else 0.0
