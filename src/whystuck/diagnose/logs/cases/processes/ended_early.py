"""H103 by ends of processes: a rank ended in good order, and others waited for it later."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.logs.cases.parts import (
    WAITS,
    find_time,
    is_said,
    list_ranks,
    stands_before,
)
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.live import ExitRecord
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_UNDESTROYED = "group.undestroyed"
_LOGS = {"log", "launcher log"}
_MAX_LINES = 6


def make_ended_early(view: LogView) -> Iterator[Case]:
    """Make the case of few ranks that ended in good order before others waited in vain.

    The launcher says that they ended without an error, or torch warns in them that a program ends
    while its groups are there. Who raised an exception, or ended with another code, prints the
    warning as well; and so may any rank, where an exception is of nobody that is known. What
    whystuck itself recorded of ends is judged with the ops.
    """
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    raised = tuple(item for item in view.exceptions if is_timeout(item))
    waiting = {*list_ranks(waits), *list_ranks(raised)}
    failed = {item.rank for item in view.exceptions if not is_timeout(item)} | view.ended_ranks
    failed |= {item.rank for item in view.exits if item.signal and item.rank >= 0}
    ends = _list_ends(view, waits)
    gone = {rank: item for rank, item in ends.items() if rank not in failed}
    ranks = tuple(sorted(gone))
    # What is said of who waits, too, is not said of single processes.
    if not ranks or not waiting or ends.keys() & waiting or -1 in failed:
        return
    if len(ranks) > len(waiting):
        return
    told = [item for item in gone.values() if isinstance(item, LogEvent)]
    exits = tuple(item for item in gone.values() if isinstance(item, ExitRecord))
    yield Case(
        code=codes.LEFT_EARLY,
        summary=f"{name_ranks(ranks)} came to the end of the program without an error, and "
        f"{name_ranks(sorted(waiting))} waited until a time limit",
        tier=PARTED - 1,
        ranks=ranks,
        victims=tuple(sorted(waiting)),
        lines=(*told, *waits)[:_MAX_LINES],
        exceptions=raised,
        exits=exits,
        time=find_time(told, exits),
    )


def _list_ends(view: LogView, waits: list[LogEvent]) -> dict[int, LogEvent | ExitRecord]:
    """Return what tells first that a rank came to its end, where it did so before the others."""
    found: dict[int, LogEvent | ExitRecord] = {}
    for item in view.exits:
        if item.code == 0 and not item.signal and item.source in _LOGS and item.rank >= 0:
            found.setdefault(item.rank, item)
    for event in view.list_signatures(_UNDESTROYED):
        if event.rank >= 0 and is_said(event) and not event.is_past:
            found.setdefault(event.rank, event)
    return {rank: item for rank, item in found.items() if stands_before(item, waits)}
