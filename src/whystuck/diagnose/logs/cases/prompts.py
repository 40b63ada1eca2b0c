"""Whose host it is of which a tool tells: that of the prompt above, or of the line's own prefix."""

from __future__ import annotations

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent


def find_prompt_host(view: LogView, event: LogEvent, signature: str) -> str:
    """Return the host that a line is about, empty where nothing tells.

    Args:
        view: The logs.
        event: The line.
        signature: What prompts look like at which such lines are asked for.
    """
    if label := event.groups.get("at") or event.groups.get("at2"):
        return label
    above = [
        one
        for one in view.list_signatures(signature)
        if one.artifact == event.artifact and one.row < event.row
    ]
    last = above[-1].groups if above else {}
    return event.node or last.get("host") or last.get("host2") or ""
