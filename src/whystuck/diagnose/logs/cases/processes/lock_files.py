"""H115 by what ranks print that somebody interrupts while they wait for the file of a lock."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import is_in
from whystuck.diagnose.logs.cases.parts import find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_WAIT, _INTERRUPT = "lock.file_wait", "KeyboardInterrupt"
_MAX_LINES = 6
# Who starts the ranks is interrupted with them.
_LAUNCHERS = (
    *("torch/distributed/run.py", "torch/distributed/launch", "torch/multiprocessing/spawn.py"),
    *("deepspeed/launcher/", "accelerate/commands/", "bin/deepspeed", "bin/torchrun"),
)
# Between the call that waits and what ends the traceback: its source, and the marks below that.
_NEAR = 4


def make_lock_files(view: LogView) -> Iterator[Case]:
    """Make the case of processes that were in the wait for a lock's file when somebody ended them.

    Where others were at work, one of them may hold the lock and be about to give it back.
    """
    ends = list(_list_interrupts(view))
    calls = [event for event in view.list_signatures(_WAIT) if is_said(event)]
    waits = [event for event in calls if any(_is_of(event, *end) for end in ends)]
    if not waits:
        return
    is_all = all(any(_is_of(event, *end) for event in waits) for end in ends)
    ranks = list_ranks(waits)
    yield Case(
        code=codes.LOCK_DEADLOCK,
        summary=f"{name_ranks(ranks) if ranks else 'processes'} waited for the file of a lock that "
        "another process holds or left behind, when somebody interrupted them",
        tier=PARTED,
        victims=ranks,
        lines=tuple(waits[:_MAX_LINES]),
        time=find_time(waits),
        confidence=Confidence.LIKELY if is_all else Confidence.POSSIBLE,
        details={"lock_file": True},
        remedies=("look how old the file is, and who has it: `ls -l FILE; fuser -v FILE`",),
    )


def _list_interrupts(view: LogView) -> Iterator[tuple[str, int]]:
    """Yield the places where tracebacks of processes end that somebody interrupted."""
    for item in view.exceptions:
        is_launcher = any(is_in(frame, *_LAUNCHERS) for frame in item.frames)
        if item.type == _INTERRUPT and not is_launcher:
            yield item.artifact, item.last_row or item.row
    traced = {(item.artifact, item.last_row) for item in view.exceptions}
    lines = view.list_events(codes.PYTHON_EXCEPTION, "cause")
    ends = [event for event in lines if event.groups.get("exc") == _INTERRUPT]
    is_signed = any(event.rank >= 0 for event in ends)  # the others are of launchers
    for event in ends:
        place = event.artifact, event.row
        if place not in traced and (event.rank >= 0 or not is_signed):
            yield place


def _is_of(event: LogEvent, artifact: str, row: int) -> bool:
    """Tell whether a call is the last one of a traceback that ends in a row."""
    return event.artifact == artifact and 0 < row - event.row <= _NEAR
