"""Where the run begins that a log is asked about, behind those that ended before it."""

from __future__ import annotations

from collections.abc import Iterable

from whystuck.evidence.logs.lines import LogEvent

# A launcher that speaks this long after another one of the same host belongs to another run.
_NEW_RUN_NS = 900 * 1_000_000_000


def find_begins(events: Iterable[LogEvent]) -> dict[str, int]:
    """Find the line before which each log is of an earlier run, whose launcher had ended.

    People append the output of one run to that of the run before.
    """
    begins: dict[str, int] = {}
    last: dict[tuple[str, str], LogEvent] = {}
    for event in sorted(events, key=lambda event: (event.artifact, event.row)):
        if event.pid and event.time and event.signature.startswith("elastic."):
            before = last.get((event.artifact, event.node))
            then = before.time if before is not None and before.pid != event.pid else None
            if before is not None and then and event.time.ns - then.ns > _NEW_RUN_NS:
                begins[event.artifact] = before.row
            last[event.artifact, event.node] = event
    return begins
