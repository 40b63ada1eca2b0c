"""H120 and C204 by a thread that ended with an exception: its process goes on without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_cascade, is_timeout
from whystuck.diagnose.algorithms.failures.raised import Alike, group_alike, is_own
from whystuck.diagnose.algorithms.stacks.frames import (
    describe_place,
    find_user_frame,
    is_user_frame,
    name_function,
)
from whystuck.diagnose.logs.cases.parts import (
    WAITS,
    find_time,
    is_said,
    list_first,
    list_ranks,
    place_exceptions,
)
from whystuck.diagnose.logs.story import BUSY, LOST, OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.live import PythonException, StackSample
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks

# Where a thread waits for another one of its process; py-spy writes paths short.
_WAIT_FILES = ("threading.py", "queue.py", "futures/_base.py")
_WAIT_CALLS = {"wait", "get", "put", "join", "result", "acquire", "_wait_for_tstate_lock"}
_MAX_MESSAGE = 160
# What may have no part in it follows from all that has.
_LAST = LOST + 5
_LOGS = {"log", "launcher log"}


def make_thread_errors(view: LogView) -> Iterator[Case]:
    """Make a case of each exception that ended a thread of a rank, but not the rank.

    Python goes on without such a thread. What it should have done never comes: to the main thread
    which waits for it, or to the ranks that wait until a time limit. Only an exception in code of
    the user is told of: trackers and progress bars have threads that nobody waits for. A rank whose
    main thread raised something too is judged by that, and one that waits with the others has
    called what they wait in. What whystuck itself recorded of a rank is judged with its stacks.
    """
    main = (item for item in view.exceptions if item.is_main_thread)
    raised = {item.rank for item in main if not is_cascade(item)}
    found = [
        item
        for item in view.exceptions
        if not item.is_main_thread
        and not item.is_caught
        and item.source in _LOGS
        and item.rank not in raised
        and is_own(item)
        and find_user_frame(item.frames) is not None
    ]
    last = {one.rank: one for one in view.evidence.stacks if not one.worker and one.rank >= 0}
    groups = group_alike(found)
    for group in list_first(groups, lambda group: find_time(group.items)):
        yield from _make_of_group(view, group, last)


def _make_of_group(view: LogView, group: Alike, last: Mapping[int, StackSample]) -> Iterator[Case]:
    item = group.items[0]
    sample = last.get(item.rank) if len(group.ranks) == 1 else None
    place = _find_wait(sample, item) if sample is not None else None
    if sample is not None and place is not None:
        others = {*last, *_list_waiting(view)} - {item.rank}
        yield _make_waiting(group, sample, place, tuple(sorted(others)))
    elif not _list_waiting(view) & set(group.ranks):
        yield _make_alone(view, group)


def _list_waiting(view: LogView) -> set[int]:
    waits = (event for event in view.list_signatures(*WAITS) if is_said(event))
    timeouts = (item for item in view.exceptions if is_timeout(item))
    return {*list_ranks(waits), *list_ranks(timeouts)}


def _find_wait(sample: StackSample, item: PythonException) -> Frame | None:
    """Return the user's line in which a main thread waits for threads, after one of them failed."""
    if sample.main is None or sample.row is None:
        return None
    is_later = sample.artifact != item.artifact or sample.row > (item.row or 0)
    frames = sample.main.frames
    inner = frames[0] if frames else None
    is_wait = (
        inner is not None
        and inner.file.endswith(_WAIT_FILES)
        and not is_user_frame(inner)
        and name_function(inner) in _WAIT_CALLS
    )
    return find_user_frame(frames) if is_later and is_wait else None


def _name(group: Alike) -> str:
    message = f"({group.message!r:.120})" if group.message else ""
    return f"{group.type}{message}"


def _make_waiting(group: Alike, sample: StackSample, place: Frame, others: tuple[int, ...]) -> Case:
    item = group.items[0]
    return Case(
        code=codes.EXCEPTION_HANGING,
        summary=f"rank {item.rank} waits in {describe_place(place)} for its threads, and thread "
        f"{item.thread} ended with {_name(group)}",
        tier=OWN - 1,
        ranks=(item.rank,),
        victims=others,
        exceptions=group.items,
        where=place_exceptions((item,)),
        time=item.time,
        details={
            "exception": item.type,
            "message": group.message[:_MAX_MESSAGE],
            "now": "in user code",
            "thread": item.thread,
        },
        cites=(Citation(f"main thread of rank {item.rank}", sample.artifact, sample.row),),
    )


def _make_alone(view: LogView, group: Alike) -> Case:
    """Make the case of a thread that failed, where no stack shows what its process does now.

    Where others waited for its rank until a time limit, that is likely for what the thread did.
    """
    item = group.items[0]
    waiting = _list_waiting(view)
    is_common = len(group.ranks) > 1 and 2 * len(group.ranks) >= len(view.ranks)
    ranks = () if is_common else group.ranks
    who = name_ranks(group.ranks) if group.ranks else "a rank"
    frame = find_user_frame(item.frames)
    at = f" in {describe_place(frame)}" if frame is not None else ""
    tail = f", and {name_ranks(sorted(waiting))} waited until a time limit" if waiting else ""
    is_likely = bool(waiting) and bool(ranks)
    return Case(
        code=codes.SAME_EXCEPTION_EVERYWHERE if is_common else codes.PYTHON_EXCEPTION,
        summary=f"thread {item.thread} of {who} ended with {_name(group)}{at}: "
        f"a process goes on without the thread{tail}",
        tier=BUSY if is_likely else _LAST,
        ranks=ranks,
        victims=tuple(sorted(waiting)),
        exceptions=group.items,
        where=place_exceptions(group.items[:1]),
        time=find_time(group.items),
        confidence=Confidence.LIKELY if is_likely else Confidence.POSSIBLE,
        details={"exception": item.type, "message": group.message[:_MAX_MESSAGE]}
        | ({"ranks": list(group.ranks)} if is_common else {}),
    )
