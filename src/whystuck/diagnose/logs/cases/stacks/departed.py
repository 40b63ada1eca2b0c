"""H103 by pasted stacks beside watchdogs: a rank tears its groups down while others wait for it."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.algorithms.stacks.frames import make_places
from whystuck.diagnose.algorithms.stacks.positions import Doing, locate
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.live import StackSample
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
_PLACES = 2
_LEAVES = {
    Doing.TEARDOWN: "in destroy_process_group",
    Doing.EXITING: "at the end of its program",
}


def make_departed(view: LogView) -> Iterator[Case]:
    """Make the case of few ranks whose stacks show that they leave, where others waited in vain.

    Who raised an exception leaves because of it, and who gave up waiting leaves because of that.
    Where an exception is of no known rank, it may be of those that leave.
    """
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    raised = tuple(item for item in view.exceptions if is_timeout(item))
    waiting = {*list_ranks(waits), *list_ranks(raised)}
    failed = {item.rank for item in view.exceptions if item not in raised}
    last = {one.rank: one for one in view.evidence.stacks if not one.worker and one.rank >= 0}
    leaving = {rank: one for rank, one in last.items() if _find_leave(one) and one.row is not None}
    ranks = tuple(sorted(leaving))
    if not ranks or waiting & leaving.keys() or failed & {*ranks, -1}:
        return
    if len(ranks) >= len(waiting):
        return
    doing = _find_leave(leaving[ranks[0]])
    yield Case(
        code=codes.LEFT_EARLY,
        summary=f"{name_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} {doing}, and "
        f"{name_ranks(sorted(waiting))} waited until a time limit for what did not come any more",
        tier=PARTED - 2,
        ranks=ranks,
        victims=tuple(sorted(waiting)),
        lines=tuple(waits[:_MAX_LINES]),
        exceptions=raised,
        where=tuple(
            place
            for rank in ranks
            if (main := leaving[rank].main) is not None
            for place in make_places(rank, main.frames, _PLACES)
        ),
        time=find_time(waits),
        confidence=Confidence.LIKELY,
        cites=tuple(
            Citation(f"rank {rank} is {_find_leave(one)}", one.artifact, one.row)
            for rank, one in sorted(leaving.items())[:_MAX_LINES]
        ),
    )


def _find_leave(sample: StackSample) -> str:
    """Return in words how a rank leaves, empty where its stack does not show that it does."""
    main = sample.main
    return _LEAVES.get(locate(main.frames).doing, "") if main is not None else ""
