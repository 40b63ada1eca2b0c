"""H101 and H102 by stacks beside watchdogs: a rank is in another collective than others gave up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import (
    describe_place,
    find_user_frame,
    is_user_frame,
    make_places,
    name_function,
)
from whystuck.diagnose.algorithms.stacks.positions import Doing, Position, locate, name_call
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.live import StackSample
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
_BARRIERS = {"barrier", "monitored_barrier"}
# Functions that are named after the one rank that runs them: `log_if_main`, `rank_zero_only`.
_OF_ONE = re.compile(
    r"(?:^|_)(?:(?:if|only|on|for|only_on|only_if)_(?:is_)?(?:main|master|rank_?(?:0|zero)|chief)"
    r"|(?:main|master|rank_?(?:0|zero)|chief)(?:_process|_rank)?_only)(?:_|$)",
    re.IGNORECASE,
)
_COMPARE = "compare how many batches each rank has: whose data ends first leaves the loop"
_CALL_ON_ALL = "see which condition leads there, such as `if rank == 0`: all ranks have to call it"


def make_past(view: LogView) -> Iterator[Case]:
    """Make the case of a few ranks that wait in a call of their own, as their stacks show.

    All ranks must be told of, and their stacks must part: whose lines a log lacks, or who came
    late to the same call, is no odd one.
    """
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    waiting = set(list_ranks(waits))
    last = {one.rank: one for one in view.evidence.stacks if not one.worker and one.rank >= 0}
    at = {rank: locate(one.main.frames) for rank, one in last.items() if one.main is not None}
    if not waits:
        waiting = _list_in_next_step(at)
    odd = sorted(at.keys() - waiting)
    told = frozenset[int]().union(*view.evidence.logs.ranks_by_process.values())
    ranks = at.keys() if not waits else view.ranks | {rank for rank in told if rank >= 0}
    is_whole = waiting | at.keys() == ranks and bool(waiting & at.keys())
    own = _find_lone(at, waits, odd)
    if not is_whole or not (0 < 2 * len(odd) < len(ranks) or own is not None):
        return
    theirs = {_name(at[rank]) for rank in waiting & at.keys()}
    calls = {_name(at[rank]) for rank in odd}
    if any(at[rank].doing is not Doing.COLLECTIVE for rank in odd) or calls & theirs:
        return
    case = _tell(waits, waiting, {rank: last[rank] for rank in odd}, min(calls))
    yield case if own is None else _tell_lone(case, own, at[0], min(calls))


def _find_lone(at: dict[int, Position], waits: list[LogEvent], odd: list[int]) -> Frame | None:
    """Find the function that is named after the first rank, in which that waits alone.

    What others gave up they can only wait in where the first rank has not come to it: it is in a
    call more than they have made, and the name tells why they do not come there.
    """
    if not waits or odd != [0]:
        return None
    others = {frame.function for rank, one in at.items() if rank for frame in one.frames}
    users = [one for one in at[0].frames if is_user_frame(one)]
    named = [one for one in users if _OF_ONE.search(name_function(one))]
    return next((one for one in named if one.function not in others), None)


def _tell_lone(case: Case, own: Frame, first: Position, call: str) -> Case:
    """Tell the same of the first rank, in a call that only it makes."""
    return replace(
        case,
        code=codes.EXTRA_COLLECTIVE,
        summary=f"rank 0 alone calls {call}, in {describe_place(own)}, which by its name only the "
        f"first rank runs; {name_ranks(case.victims)} did not come to it, and waited in another "
        "call until a time limit",
        where=tuple(make_places(0, first.frames)),
        details={"group": "", "sequence": 0, "ops": {}},
        remedies=(_CALL_ON_ALL,),
    )


def _list_in_next_step(at: dict[int, Position]) -> set[int]:
    """Return most ranks, which are at one line of backward, where the others are in a barrier.

    Backward waits for all ranks: who is past it has passed it with the others, which are in that
    of the next step, and did not come to the barrier.
    """
    others = {rank for rank, one in at.items() if one.doing is not Doing.BACKWARD}
    most = at.keys() - others
    lines = {at[rank].user for rank in most}
    are_rare = all(_name(at[rank]) in _BARRIERS for rank in others)
    return set(most) if len(lines) == 1 and len(most) > 1 and are_rare else set()


def _tell(
    waits: list[LogEvent], waiting: set[int], stacks: dict[int, StackSample], call: str
) -> Case:
    odd = list(stacks)
    who, first = name_ranks(odd), stacks[odd[0]].main
    frame = find_user_frame(first.frames) if first is not None else None
    verb = "waits" if len(odd) == 1 else "wait"
    return Case(
        code=codes.RANK_NEVER_JOINED,
        summary=f"{who} {verb} in {call}{f' in {describe_place(frame)}' if frame else ''}, and did "
        f"not come to what {name_ranks(sorted(waiting))} waited in: that is further on, or on "
        "another way",
        tier=PARTED,
        ranks=tuple(odd),
        victims=tuple(sorted(waiting)),
        lines=tuple(waits[:_MAX_LINES]),
        time=find_time(waits),
        confidence=Confidence.LIKELY,
        details={"state": "waiting", "missing": odd, "ready": sorted(waiting)},
        cites=tuple(_cite(one, call) for one in list(stacks.values())[:_MAX_LINES]),
        remedies=(_CALL_ON_ALL,) if not waits else (_COMPARE,),
    )


def _name(position: Position) -> str:
    is_call = position.doing is Doing.COLLECTIVE
    return name_call(position.frames) if is_call else position.doing.value


def _cite(sample: StackSample, call: str) -> Citation:
    return Citation(f"rank {sample.rank} is in {call}", sample.artifact, sample.row)
