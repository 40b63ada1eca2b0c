"""H114 by what NCCL's watchdog prints, and by pasted stacks: a thread keeps the GIL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import describe_place, find_user_frame, make_places
from whystuck.diagnose.algorithms.stacks.gil import wants_gil
from whystuck.diagnose.logs.cases.next_step import dump_native
from whystuck.diagnose.logs.cases.parts import find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.live import StackSample, ThreadStack
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
_LIBRARY = re.compile(r"\.so(?:\.\d+)*$")
_OF_OTHERS = re.compile(
    r"lib(?:torch|c10|cuda|nccl|rccl|hccl|ucc|gloo|pthread|stdc\+\+|gomp|python)"
    r"|lib(?:c|m|dl|rt)(?:-\d[\d.]{0,8})?\.so|ld-linux|_C\."
)


def make_gil_held(view: LogView) -> Iterator[Case]:
    """Make a case of each rank whose watchdog says that it did not get the GIL.

    One look at stacks does not tell it: at any moment some thread owns the GIL, and others want it.
    Nor does a watchdog that gives no sign, which waits in a driver as well; both together do.
    """
    last = {one.rank: one for one in view.evidence.stacks if not one.worker}
    events = [event for event in view.list_signatures("c10d.gil") if is_said(event)]
    alone = _find_alone(list(last.values()), is_told=bool(events))
    if not events and alone is not None:
        events = [event for event in view.list_signatures("c10d.heartbeat") if is_said(event)]
        events = events if len(list_ranks(events)) == 1 else []
    ranks = list_ranks(events)
    alone = alone if len(ranks) == 1 else None
    for rank in ranks:
        own = [event for event in events if event.rank == rank]
        sample = last.get(rank, alone)
        owner = _find_owner(sample) if sample is not None else None
        yield _tell(view, rank, own, sample, owner)


def _find_alone(samples: Sequence[StackSample], *, is_told: bool) -> StackSample | None:
    """Return the stacks of a process whose rank nobody tells, where they are the only ones.

    That no thread gets the GIL, and which one has it, are two signs of one process: whoever pastes
    both looked into the one that does not answer. So it is only where several threads wait, or,
    where it is told that nobody got the GIL, where its owner is in a library of the job.
    """
    if len(samples) != 1 or samples[0].rank >= 0:
        return None
    waiting = [one for one in samples[0].threads if wants_gil(one) and not one.owns_gil]
    owner = _find_owner(samples[0])
    is_kept = owner is not None and (len(waiting) > 1 or (is_told and _is_in_library(owner)))
    return samples[0] if is_kept else None


def _is_in_library(thread: ThreadStack) -> bool:
    """Tell whether a thread is in native code, and not in that of torch, CUDA or the system."""
    file = thread.frames[0].file.rsplit("/", 1)[-1]
    return _LIBRARY.search(file) is not None and _OF_OTHERS.match(file) is None


def _find_owner(sample: StackSample) -> ThreadStack | None:
    return next((one for one in sample.threads if one.owns_gil and one.frames), None)


def _tell(
    view: LogView,
    rank: int,
    events: Sequence[LogEvent],
    sample: StackSample | None,
    owner: ThreadStack | None,
) -> Case:
    frame = find_user_frame(owner.frames) if owner is not None else None
    place = f" in {describe_place(frame)}" if frame is not None else ""
    is_told = any(event.signature == "c10d.gil" for event in events)
    then = "not even the watchdog got it" if is_told else "its watchdog gives no sign any more"
    cites = []
    if sample is not None and owner is not None:
        count = sum(wants_gil(one) for one in sample.threads if one is not owner)
        text = f"thread {owner.name} owns the GIL{place}, and {count} others wait for it"
        cites.append(Citation(text, sample.artifact, sample.row))
    return Case(
        code=codes.GIL_HELD,
        summary=f"a thread of rank {rank} keeps the GIL{place}: {then}",
        tier=PARTED,
        ranks=(rank,),
        lines=tuple(events[:_MAX_LINES]),
        where=tuple(make_places(rank, owner.frames, 3)) if owner is not None else (),
        time=find_time(events),
        confidence=Confidence.LIKELY if owner is not None else Confidence.POSSIBLE,
        details={"thread": owner.name if owner is not None else "", "library": ""},
        remedies=() if owner is not None else (dump_native(view, [rank]),),
        cites=tuple(cites),
    )
