"""H125 by what a rank that came too late says: what it did took longer than the limit."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import (
    WAITS,
    find_exceptions,
    find_time,
    is_said,
    list_ranks,
    place_exceptions,
    stands_before,
)
from whystuck.diagnose.logs.story import BUSY, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.ranks import name_ranks, parse_ranks

_MAX_LINES = 6
_MS = 1000.0
_BARRIER = "c10d.monitored_barrier"


def make_late_phases(view: LogView) -> Iterator[Case]:
    """Make the case of a limit that ended a wait for a rank which was done a little later.

    The rank says itself how long what it did took, below what those print that waited: that is
    longer than the limit. What it does each time is no fault of its own.
    """
    waits = [
        (event, int(event.groups["ms"]) / _MS)
        for event in view.list_signatures(*WAITS, _BARRIER)
        if is_said(event) and (event.groups.get("ms") or "").isdecimal()
    ]
    events = [event for event, _ in waits]
    waiting = set(list_ranks(events))
    named = {rank for one in events for rank in parse_ranks(one.groups.get("ranks") or "")}
    limit = min((seconds for _, seconds in waits), default=0.0)
    late = {
        row.rank: row
        for row in view.list_signatures("table.phase_time")
        if row.rank not in waiting and float(row.groups["s"]) >= limit > 0
        if not stands_before(row, events) and (not named or row.rank in named)
    }
    if not late or (named and named - late.keys()) or not waiting:
        return
    first = min(late.values(), key=lambda row: row.row)
    exceptions = find_exceptions(view, events)
    yield Case(
        code=codes.TIMEOUT_TOO_SHORT,
        summary=f"the limit of {limit:g} s is too short: {first.groups['what']} of "
        f"{name_ranks(sorted(late))} took {float(first.groups['s']):g} s and came to its end, "
        "while the others gave up",
        tier=BUSY,
        victims=tuple(sorted(waiting)),
        lines=(*late.values(), *events)[:_MAX_LINES],
        exceptions=exceptions,
        where=place_exceptions(exceptions[:1]),
        time=find_time(events),
        details={
            "group": "",
            "sequence": -1,
            "op": first.groups["what"],
            "late_ranks": sorted(late),
        },
    )
