"""C208 by a program that did the same work on another device: one of them computes wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.story import OUTSIDE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks

_DENIED = re.compile(r"\b(?:no|not|never|without|any|if|whether|for) silent", re.IGNORECASE)


def make_miscomputing(view: LogView) -> Iterator[Case]:
    """Make the case of devices that a program or a test found to compute wrong."""
    told = view.list_signatures("device.miscomputes")
    events = [event for event in told if is_said(event) and not _DENIED.search(event.text)]
    if not events:
        return
    named = {_read(event, "own", "own2") for event in events} - {-1}
    ranks = tuple(sorted(rank for rank in named if rank <= MAX_RANK))
    nodes = tuple(sorted({event.groups.get("node") or event.node for event in events} - {""}))
    devices = sorted({_read(event, "dev", "dev2") for event in events} - {-1})
    is_transient = all(event.groups.get("what") == "transient" for event in events)
    which = f"device {', '.join(map(str, devices))}" if devices else "a device"
    where = f" of {' and '.join(nodes)}" if nodes else ""
    whose = f" ({name_ranks(ranks)})" if ranks else ""
    yield Case(
        code=codes.HARDWARE_ERROR,
        summary=f"{which}{where}{whose} computes wrong: the same work gave another result "
        "elsewhere",
        tier=OUTSIDE,
        ranks=ranks,
        nodes=nodes,
        lines=tuple(events[:6]),
        time=find_time(events),
        confidence=Confidence.POSSIBLE if is_transient else Confidence.LIKELY,
        details={"kind": "sdc"},
        remedies=("drain the host, and test the device: `dcgmi diag -r 4`",),
        scope=view.ranks,
    )


def _read(event: LogEvent, *names: str) -> int:
    text = next((told for name in names if (told := event.groups.get(name))), "")
    return int(text) if text.isdecimal() else -1
