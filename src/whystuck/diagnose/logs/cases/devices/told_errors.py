"""N412 by what nvidia-smi and dcgmi show: errors that were not corrected, and failed tests."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.prompts import find_prompt_host
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6


def make_told_errors(view: LogView) -> Iterator[Case]:
    """Make the case of devices that a tool shows with errors, or cannot read."""
    events = list(view.list_signatures("device.told_error"))
    if not events:
        return
    hosts = {find_prompt_host(view, event, "shell.device_asked") for event in events}
    nodes = tuple(sorted(hosts - {""}))
    where = f" of {' and '.join(nodes)}" if nodes else ""
    yield Case(
        code=codes.DEVICE_ERRORS,
        summary=f"a device{where} has errors, as a tool shows: {_describe(events)}",
        tier=NOTE,
        nodes=nodes,
        lines=tuple(events[:_MAX_LINES]),
        confidence=Confidence.LIKELY,
        details={"check": "text"},
        remedies=("nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg -T | grep -i xid   # on that host",),
    )


def _describe(events: list[LogEvent]) -> str:
    told = {name: value for event in events for name, value in event.groups.items() if value}
    if "failed" in told:
        return f"a test of it failed ({told['failed'].strip()})"
    if "unread" in told:
        return "its power or memory cannot be read"
    if "remap" in told:
        return "a row of its memory could not be replaced"
    return f"{told.get('errors', '')} errors of memory that were not corrected".strip()
