"""S311 by what allocators of devices print: blocks are given back in steps, which waits."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

# One or two are usual when a job starts, or evaluates.
_LEAST_LINES = 3
_LEAST_RETRIES = 10
_MAX_LINES = 6


def make_memory_pressure(view: LogView) -> Iterator[Case]:
    """Make the case of steps in which the memory of the device was full again and again."""
    events = [event for event in view.list_signatures("mem.flushes") if is_said(event)]
    flushes = [count for event in events if (count := _read(event, "n"))]
    retries = max((_read(event, "n2", "n3") for event in events), default=0)
    if len(flushes) < _LEAST_LINES and retries < _LEAST_RETRIES:
        return
    often = f"{min(flushes)} to {max(flushes)} times a step" if flushes else f"{retries} times"
    yield Case(
        code=codes.MEMORY_PRESSURE,
        summary=f"the memory of the devices is nearly full: the allocator gave its cache back "
        f"{often}, and each time the device has to wait",
        tier=NOTE,
        lines=tuple(events[-_MAX_LINES:]),
        time=find_time(events),
        confidence=Confidence.LIKELY,
        details={"flushes": sum(flushes), "retries": retries},
    )


def _read(event: LogEvent, *names: str) -> int:
    return max(int(event.groups.get(name) or 0) for name in names)
