"""H103 as ranks tell it that join uneven inputs, and S307 by what the garbage collector prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.logs.cases.parts import (
    WAITS,
    find_exceptions,
    find_time,
    is_said,
    list_ranks,
    place_exceptions,
    stands_before,
)
from whystuck.diagnose.logs.story import NOTE, OWN, PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

# A pause of this length is felt by all ranks that wait for its rank; one alone may be by chance.
_LEAST_S = 0.1
_LEAST_PAUSES = 2
_MAX_LINES = 6
_FEW = 2
# That a rank is past a loop, whichever it is.
_WEAK = ("loop.ended", "group.left")


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


def make_left(view: LogView) -> Iterator[Case]:
    """Make the case of a few ranks that said that they leave, before others waited in vain."""
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    raised = tuple(item for item in view.exceptions if is_timeout(item))
    waiting = {*list_ranks(waits), *list_ranks(raised)}
    told = list_leavers(view, waits)
    waiting -= _list_behind_loop(waits, set(told) & waiting)
    # What all say is the normal end of a loop.
    if not told or not waiting or waiting & told.keys() or len(told) > len(waiting):
        return
    ranks = tuple(sorted(told))
    is_group = all(event.signature == _WEAK[-1] for event in told.values())
    did = "destroyed process groups" if is_group else "left the loop or had no more data"
    yield Case(
        code=codes.LEFT_EARLY,
        summary=f"{name_ranks(ranks)} {did}, as the log says, and "
        f"{name_ranks(sorted(waiting))} waited until a time limit",
        tier=PARTED - 1,
        ranks=ranks,
        victims=tuple(sorted(waiting)),
        lines=(*told.values(), *waits)[:_MAX_LINES],
        exceptions=raised,
        time=find_time(told.values()),
        confidence=Confidence.POSSIBLE if speaks_for_all(view, ranks) else Confidence.LIKELY,
    )


def list_leavers(view: LogView, waits: Sequence[LogEvent | PythonException]) -> dict[int, LogEvent]:
    """Return the ranks that say that they leave the loop, and what they say first.

    That a loop ended, or groups are destroyed, is said by a rank that failed as well, and by the
    one that prints for all.
    """
    told: dict[int, LogEvent] = {}
    weak: dict[int, LogEvent] = {}
    for event in view.list_signatures("data.ended", *_WEAK):
        rank = _find_leaver(event)
        if rank >= 0 and is_said(event) and not event.is_past and stands_before(event, waits):
            (weak if event.signature in _WEAK else told).setdefault(rank, event)
    failed = {item.rank for item in view.exceptions if not is_timeout(item)}
    weak = {} if -1 in failed else {rank: weak[rank] for rank in weak.keys() - failed}
    return told or ({} if speaks_for_all(view, tuple(weak)) else weak)


def _list_behind_loop(waits: Sequence[LogEvent], leavers: set[int]) -> set[int]:
    """Return those that left and wait in another op than all who stayed: one behind the loop."""
    ops: dict[int, set[tuple[str, str]]] = {}
    for event in waits:
        op, size = event.groups.get("op") or "", event.groups.get("nin") or ""
        if op:
            ops.setdefault(event.rank, set()).add((op, size))
    theirs = {op for rank, told in ops.items() if rank not in leavers for op in told}
    return {rank for rank in leavers if rank in ops and theirs and not ops[rank] & theirs}


def _find_leaver(event: LogEvent) -> int:
    """Return the rank that a sentence names, or else the one that wrote it."""
    named = event.groups.get("who") or ""
    return int(named) if named.isdecimal() else event.rank


def speaks_for_all(view: LogView, ranks: Sequence[int]) -> bool:
    """Tell whether it may be the one rank that prints what all of them do."""
    printing = frozenset[int]().union(*(file.loss_ranks for file in view.files))
    return set(ranks) == {0} and len(printing) < _FEW


def make_pauses(view: LogView) -> Iterator[Case]:
    """Make the case of long pauses for the collection of garbage, which come at random."""
    pauses = {
        (event.artifact, event.row): (event, seconds)
        for event in view.list_signatures("gc.pause")
        if (seconds := _read_seconds(event))
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


def _read_seconds(event: LogEvent) -> float:
    told = next((one for name in ("s", "s2", "s3") if (one := event.groups.get(name))), "")
    return float(told or 0) or float(event.groups.get("ms") or 0) / 1000
