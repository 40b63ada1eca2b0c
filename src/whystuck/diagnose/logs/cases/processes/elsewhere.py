"""H101 by words of ranks: one says that it is still at something else, and others wait for it."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.cases.slow.busy import is_done
from whystuck.diagnose.logs.story import BUSY, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks

_MAX_LINES = 6
_MAX_TEXT = 80


def make_elsewhere(view: LogView) -> Iterator[Case]:
    """Make the case of ranks whose last words are of other work, while others waited in vain."""
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    raised = tuple(item for item in view.exceptions if is_timeout(item))
    waiting = {*list_ranks(waits), *list_ranks(raised)}
    told: dict[int, LogEvent] = {}
    for event in view.list_signatures("progress.still"):
        rank = _find_who(event)
        if rank >= 0 and is_said(event) and not event.is_past:
            told[rank] = event
    told = {rank: event for rank, event in told.items() if not is_done(event)}
    # What all are at is the loop in which they wait.
    if not told or not waiting or waiting & told.keys() or len(told) > len(waiting):
        return
    ranks = tuple(sorted(told))
    words = told[ranks[0]].text.strip()[:_MAX_TEXT]
    yield Case(
        code=codes.RANK_NEVER_JOINED,
        summary=f'{name_ranks(ranks)} said to be elsewhere ("{words}"), and '
        f"{name_ranks(sorted(waiting))} waited until a time limit",
        tier=BUSY,
        ranks=ranks,
        victims=tuple(sorted(waiting)),
        lines=(*told.values(), *waits)[:_MAX_LINES],
        exceptions=raised,
        time=find_time(told.values()),
        confidence=Confidence.LIKELY,
        details={"state": "running", "missing": list(ranks), "ready": sorted(waiting)},
        remedies=(
            f"py-spy dump --pid PID   # of {name_ranks(ranks)}: where it is, while it still is",
        ),
    )


def _find_who(event: LogEvent) -> int:
    """Return the rank that a sentence names, or else the one that wrote it."""
    named = event.groups.get("who") or ""
    return min(int(named), MAX_RANK + 1) if named.isdecimal() else event.rank
