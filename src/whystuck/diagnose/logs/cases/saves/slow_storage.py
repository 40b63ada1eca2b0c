"""N402 by tools that tell how long reads and writes take: nfsiostat, iostat."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 4
# A file server that is well answers in a few ms, a disk in less; both take longer under load.
_SLOW_MS = 100.0
_LEAST_OPS = 1.0
# A disk that rests answers late now and then.
_BUSY = 80.0


def list_slow_storage(view: LogView) -> list[LogEvent]:
    """Return the last figures of each mount and disk whose reads or writes take far too long."""
    last = {
        (event.artifact, event.groups["host"], event.groups["name"], event.groups["which"]): event
        for event in view.list_signatures("table.storage")
    }
    return [event for event in last.values() if _is_slow(event)]


def describe_storage(event: LogEvent) -> str:
    """Say what is slow, and how slow."""
    name = event.groups["name"]
    took = f"{float(event.groups['ms']):.0f} ms"
    return f"a {event.groups['which']} of {name or 'a mount'} takes {took}"


def make_slow_storage(view: LogView) -> Iterator[Case]:
    """Make the case of storage that answers, but far too late."""
    slow = list_slow_storage(view)
    if not slow:
        return
    worst = max(slow, key=lambda event: float(event.groups["ms"]))
    yield Case(
        code=codes.DISK_SLOW,
        summary=f"{describe_storage(worst)}: what waits for files there is slow on all ranks",
        tier=NOTE,
        # A mount is slow for its server, whoever looks; a disk is of the host that has it.
        nodes=tuple(sorted({one.groups["host"] for one in slow if "busy" in one.groups} - {""})),
        lines=tuple(slow[:_MAX_LINES]),
        confidence=Confidence.LIKELY,
        details={"path": worst.groups["name"]},
    )


def _is_slow(event: LogEvent) -> bool:
    told = event.groups
    is_used = float(told["ops"]) >= _LEAST_OPS and float(told.get("busy") or _BUSY) >= _BUSY
    return is_used and float(told["ms"]) >= _SLOW_MS
