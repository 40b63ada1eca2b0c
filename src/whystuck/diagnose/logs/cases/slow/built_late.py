"""H117 by indices of the data that take long to build, or longer than others were ready to wait."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.processes.growth import find_index_growth
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
from whystuck.evidence.ranks import name_ranks

_MS = 1000.0
_MAX_LINES = 6
# What HCCL waits when it makes its links, where nothing tells another limit.
_HCCL_LIMIT_S = 120.0
_BEFORE = "build the indices once before the job, with one process, into a folder that all share"


def make_built_late(view: LogView) -> Iterator[Case]:
    """Make the case of indices of the data that were being built when others gave up, or looked."""
    yield from _make_given_up(view)
    yield from _make_growing(view)


def _make_growing(view: LogView) -> Iterator[Case]:
    """Make the case of a rank that says it builds an index, whose file was seen to grow since."""
    begun = [
        event
        for event in view.list_signatures("progress.building")
        if is_said(event) and not event.is_past
    ]
    growth = find_index_growth(view.events)
    ranks = {int(event.groups["who"]) for event in begun}
    if growth is None or len(ranks) != 1:
        return
    place = growth.last.artifact, growth.last.row
    is_over = any(_is_below(one, place) for one in view.list_signatures("progress.built"))
    if is_over or _is_below(begun[-1], place):
        return
    rate = f" by {growth.mb_per_s} MB/s" if growth.mb_per_s else ""
    yield Case(
        code=codes.SETUP_SLOW,
        summary=f"{name_ranks(sorted(ranks))} builds an index of the data, as the log says, and "
        f"{growth.file} grew{rate} at each look: this goes on, and the others wait for it",
        tier=BUSY,
        ranks=tuple(ranks),
        lines=(begun[-1], growth.last),
        time=find_time(begun),
        confidence=Confidence.LIKELY,
        details={"state": "running"},
        remedies=(_BEFORE,),
    )


def _make_given_up(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that gave up while indices of the data were being built.

    What was built after they gave up was under way when they did. All that was built one after the
    other took longer than their limit, so that the wait had to end there, whoever else was late.
    """
    waits = _list_waits(view)
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
            _BEFORE,
        ),
    )


def _list_waits(view: LogView) -> list[tuple[LogEvent, float]]:
    """Return the lines of those who gave up, and how many seconds each had waited."""
    waits = [
        (event, int(event.groups["ms"]) / _MS)
        for event in view.list_signatures(*WAITS)
        if is_said(event) and (event.groups.get("ms") or "").isdecimal()
    ]
    told = [float(one.groups["sec"]) for one in view.list_signatures("hccl.connect_limit")]
    links = [event for event in view.list_signatures("hccl.connect") if is_said(event)]
    return waits + [(event, max(told, default=_HCCL_LIMIT_S)) for event in links]


def _is_below(event: LogEvent, place: tuple[str, int]) -> bool:
    """Tell whether a line stands below a place of its log."""
    return event.artifact == place[0] and event.row > place[1]


def _is_after(built: LogEvent, wait: LogEvent) -> bool:
    """Tell whether something was built after a rank gave up, by their clocks or in one log."""
    if built.time and wait.time and built.time.clock == wait.time.clock:
        return built.time.ns > wait.time.ns
    return built.artifact == wait.artifact and built.row > wait.row
