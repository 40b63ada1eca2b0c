"""H103 as those tell it that are left: they lost a peer, which had said that it leaves."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_cascade, is_timeout
from whystuck.diagnose.logs.cases.ops.uneven import list_leavers, speaks_for_all
from whystuck.diagnose.logs.cases.parts import (
    find_time,
    is_said,
    list_ranks,
    place_exceptions,
    stands_before,
)
from whystuck.diagnose.logs.story import LOST, PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
_DONE, _OVER = "job.done", "data.ended"
# Who goes on to the next part of the program may have failed there.
_ENTERS = re.compile(r"\bentering\b")


def make_left_alone(view: LogView) -> Iterator[Case]:
    """Make the case of few ranks that said that they leave, before others lost a peer.

    At the end of a job ranks lose each other as well: so the others were still in a call, which
    raised, or made further steps, or print steps and nothing of an end.
    """
    lines = [event for event in view.list_events(codes.PEER_LOST, "cascade") if is_said(event)]
    raised = tuple(item for item in view.exceptions if is_cascade(item) and not is_timeout(item))
    failed = [item for item in view.exceptions if not is_cascade(item)]
    told = list_leavers(view, [*lines, *raised])
    told = {rank: one for rank, one in told.items() if not _ENTERS.search(one.text)}
    ranks = tuple(sorted(told))
    left = {*list_ranks(lines), *list_ranks(raised)} - told.keys()
    if failed or not left or not 0 < len(told) <= len(left) or told.keys() & view.ended_ranks:
        return
    further = _find_further(view, told, left)
    if speaks_for_all(view, ranks) or not (further or _are_busy(view, told.keys(), left, raised)):
        return
    own = [*told.values()]
    is_sure = further is not None or all(event.signature == _OVER for event in own)
    yield Case(
        code=codes.LEFT_EARLY,
        summary=f"{name_ranks(ranks)} left, by what the log says of it "
        f"({own[0].text.strip():.80}), and {name_ranks(sorted(left))} was not done yet",
        tier=PARTED - 1 if further else LOST - 1,
        ranks=ranks,
        victims=tuple(sorted(left)),
        lines=(*own, *([further] if further else []), *lines)[:_MAX_LINES],
        exceptions=raised,
        where=place_exceptions(raised[:1]),
        time=find_time(own),
        # At the end of a loop there may be more to do, and to fail at.
        confidence=Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
    )


def _find_further(
    view: LogView, told: Mapping[int, LogEvent], left: Collection[int]
) -> LogEvent | None:
    """Return the line of a rank that made a step which none made that left, below their words."""
    steps = {event.rank: event for event in view.list_signatures("table.rank_step")}
    if not told.keys() <= steps.keys() or any(view.list_signatures(_DONE)):
        return None
    last = max(int(steps[rank].groups["step"]) for rank in told)
    further = [
        event
        for rank, event in steps.items()
        if rank in left and all(stands_before(one, [event]) for one in told.values())
    ]
    most = max(further, key=lambda event: int(event.groups["step"]), default=None)
    return most if most and int(most.groups["step"]) > last else None


def _are_busy(
    view: LogView, gone: Collection[int], left: set[int], raised: Sequence[PythonException]
) -> bool:
    """Return whether ranks that lost a peer were not done themselves."""
    if left & set(list_ranks(raised)):
        return True
    steps = {one.rank: int(one.groups["step"]) for one in view.list_signatures("table.rank_step")}
    last = max((steps.get(rank, -1) for rank in gone), default=-1)
    if last >= 0 and left <= steps.keys() and all(steps[rank] <= last for rank in left):
        return False  # as far as who left: all are at their end
    done: list[LogEvent] = list(view.list_signatures(_DONE))
    return not done and any(left & file.loss_ranks for file in view.files)
