"""H103 as ranks tell it that join uneven inputs, and S307 by what the garbage collector prints."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import (
    find_exceptions,
    find_time,
    is_said,
    list_ranks,
    place_exceptions,
)
from whystuck.diagnose.logs.story import NOTE, OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ranks import name_ranks

# A pause of this length is felt by all ranks that wait for its rank; one alone may be by chance.
_LEAST_S = 0.1
_LEAST_PAUSES = 2
_MAX_LINES = 6


def make_uneven(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that had inputs left when others had none; who had none says so."""
    events = [event for event in view.list_signatures("join.uneven") if is_said(event)]
    if not events:
        return
    raised = find_exceptions(view, events, codes.LEFT_EARLY)
    telling = list_ranks([*events, *raised])
    who = name_ranks(telling) if telling else "ranks"
    yield Case(
        code=codes.LEFT_EARLY,
        summary=f"{who} had batches left when another rank had none: ranks have different numbers "
        "of them",
        tier=OWN,
        victims=telling,
        lines=tuple(events[:_MAX_LINES]),
        exceptions=raised,
        where=place_exceptions(raised[:1]),
        time=find_time(events, raised),
        confidence=Confidence.LIKELY,
        scope=view.ranks,
    )


def make_pauses(view: LogView) -> Iterator[Case]:
    """Make the case of long pauses for the collection of garbage, which come at random."""
    pauses = {
        (event.artifact, event.row): (event, float(told))
        for event in view.list_signatures("gc.pause")
        if (told := event.groups.get("s") or event.groups.get("s2"))
    }
    long = [(event, seconds) for event, seconds in pauses.values() if seconds >= _LEAST_S]
    if len(long) < _LEAST_PAUSES:
        return
    ranks = list_ranks([event for event, _ in long])
    most = max(seconds for _, seconds in long)
    who = f" on {name_ranks(ranks)}" if ranks else ""
    yield Case(
        code=codes.GC_PAUSES,
        summary=f"the collection of garbage stopped processes {len(long)} times for up to "
        f"{most:.2f} s{who}: each time, all ranks that wait for one of them lose as much",
        tier=NOTE,
        lines=tuple(event for event, _ in long[:_MAX_LINES]),
        time=find_time([event for event, _ in long]),
        details={"pauses": len(long), "longest_s": most},
    )
