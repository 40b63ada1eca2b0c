"""H127 as a rank tells it itself: it had no data for a collective, and left it out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.ops.missing import make_missing
from whystuck.diagnose.logs.cases.ops.parted import make_parted
from whystuck.diagnose.logs.cases.parts import is_said, list_ranks
from whystuck.diagnose.logs.story import BUSY, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
# Who resumes passes over the batches of the run before.
_TRAINED = re.compile(r"\bresum|\balready\b|fast.?forward|\bseen\b", re.IGNORECASE)


def make_left_out(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that did not come to an op, and say that they leave something out.

    Who is missing is told by tools and watchdogs; the line of the rank tells why. Where a rank that
    waits says the same, it is what all of them say. That holds of a job that whystuck watches, too:
    ops that are recorded go before it. A batch that is left out matters to the ops of its own step
    alone: only of a rank that did nothing further.
    """
    said = view.list_signatures("py.left_out", "table.none_left")
    events = [event for event in said if is_said(event) and not _is_old_batch(event)]
    ranks = list_ranks(events)
    if not ranks or any(event.rank < 0 for event in events):
        return
    for case in (*make_missing(view), *make_parted(view)):
        if case.code != codes.RANK_NEVER_JOINED or case.ranks != ranks:
            continue
        own = tuple({event.rank: event for event in events}.values())
        words = own[-1].text.strip()
        yield replace(
            case,
            code=codes.SKIPPED_COLLECTIVE,
            summary=f"{name_ranks(ranks)} left out a collective in which the others wait, by what "
            f"the log says of it: {words:.120}",
            tier=BUSY,
            lines=(*own, *case.lines)[:_MAX_LINES],
            details={"skipped": "", "went_on_to": ""},
            remedies=(),
        )
        return


def _is_old_batch(event: LogEvent) -> bool:
    """Tell whether a batch was left out long ago, or was trained on in an earlier run."""
    if not event.groups.get("batch"):
        return False
    return event.is_past or _TRAINED.search(event.text) is not None
