"""H105, H106 and H107 as Horovod tells them: ranks asked for different things under one name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time, is_said, list_ranks, place_exceptions
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ranks import name_ranks

_TOLD = re.compile(r"Mismatched ([A-Za-z /]{3,60}): (One rank .{1,300})")
_MAX_LINES = 6


def make_horovod_mismatch(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that Horovod found to disagree; which of the two is wrong is not told.

    All ranks raise what its coordinator found, so that who prints it says nothing.
    """
    events = [event for event in view.list_signatures("horovod.mismatch") if is_said(event)]
    raised = tuple(item for item in view.exceptions if _TOLD.search(item.message))
    texts = [*(event.text for event in events), *(item.message for item in raised)]
    match = next((found for text in texts if (found := _TOLD.search(text))), None)
    if match is None:
        return
    what, words = match.groups()
    ranks = list_ranks([*events, *raised])
    yield Case(
        code=_name_code(what),
        summary=f"Horovod found that ranks do not agree ({what}: {words.rstrip('.')}); which of "
        f"them is wrong is not told, and {name_ranks(ranks) if ranks else 'all'} raised it alike",
        tier=OWN,
        victims=ranks,
        lines=tuple(events[:_MAX_LINES]),
        exceptions=raised,
        where=place_exceptions(raised[:1]),
        time=find_time(events, raised),
        confidence=Confidence.LIKELY,
        details={"group": "", "sequence": 0, "ops": {}, "shapes": {}},
        remedies=("print the name and the shape of what each rank reduces, and compare them",),
        scope=view.ranks,
    )


def _name_code(what: str) -> str:
    if "shape" in what:
        return codes.SHAPE_MISMATCH
    return codes.DTYPE_MISMATCH if "type" in what else codes.OP_MISMATCH
