"""H117 by how long indices of the data took to build: longer than others were ready to wait."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import (
    WAITS,
    find_exceptions,
    find_time,
    is_said,
    list_ranks,
)
from whystuck.diagnose.logs.story import BUSY, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_MS = 1000.0
_MAX_LINES = 6


def make_built_late(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that gave up while indices of the data were being built.

    What was built after they gave up was under way when they did. All that was built one after the
    other took longer than their limit, so that the wait had to end there, whoever else was late.
    """
    waits = [
        (event, int(event.groups["ms"]) / _MS)
        for event in view.list_signatures(*WAITS)
        if is_said(event) and (event.groups.get("ms") or "").isdecimal()
    ]
    built = [event for event in view.list_signatures("progress.built") if not event.is_past]
    if not waits or not built:
        return
    limit = min(seconds for _, seconds in waits)
    events = [event for event, _ in waits]
    last = built[-1]
    own = [event for event in built if (event.artifact, event.rank) == (last.artifact, last.rank)]
    total = sum(float(event.groups["sec"]) for event in own)
    is_late = any(_is_after(last, event) for event in events)
    if not is_late or total < limit or (last.rank >= 0 and last.rank in list_ranks(events)):
        return
    yield Case(
        code=codes.SETUP_SLOW,
        summary=f"ranks waited until a time limit of {limit:g} s while indices of the data were "
        f"built, which took {total:.0f} s: the job was alive, and the limit was shorter than that",
        tier=BUSY,
        victims=list_ranks(events),
        lines=(*own[-3:], *events)[:_MAX_LINES],
        exceptions=find_exceptions(view, events),
        time=find_time(events),
        confidence=Confidence.LIKELY,
        details={"state": "running"},
        remedies=(
            "raise the time limit of the group: `init_process_group(timeout=timedelta(hours=2))`",
            "build the indices once before the job, with one process, into a folder that all share",
        ),
    )


def _is_after(built: LogEvent, wait: LogEvent) -> bool:
    """Tell whether something was built after a rank gave up, by their clocks or in one log."""
    if built.time and wait.time and built.time.clock == wait.time.clock:
        return built.time.ns > wait.time.ns
    return built.artifact == wait.artifact and built.row > wait.row
