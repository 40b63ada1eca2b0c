"""H127 as a rank tells it itself: it had no data for a collective, and left it out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.ops.missing import make_missing
from whystuck.diagnose.logs.cases.ops.parted import make_parted
from whystuck.diagnose.logs.cases.parts import is_said, list_ranks, speaks_for_all
from whystuck.diagnose.logs.story import BUSY, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
_APART = {codes.OP_MISMATCH, codes.SHAPE_MISMATCH}
# A scaler leaves out the step of all ranks.
_SCALER = re.compile(r"overflow|underflow|scaler|loss.?scale", re.IGNORECASE)


def make_left_out(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that did not come to an op, and say that they leave something out.

    Who is missing, or in another op than the others, is told by tools and watchdogs; the line of
    the rank tells why. Where a rank that waits says the same, it is what all of them say. That
    holds of a job that whystuck watches, too: ops that are recorded go before it.
    """
    said = view.list_signatures("py.left_out", "table.none_left")
    events = [event for event in said if is_said(event) and not _SCALER.search(event.text)]
    ranks = list_ranks(events)
    if not ranks or any(event.rank < 0 for event in events):
        return
    for case in (*make_missing(view), *make_parted(view)):
        is_missing = case.code == codes.RANK_NEVER_JOINED and case.ranks == ranks
        if not (is_missing or _is_apart(view, case, events)):
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
            ranks=ranks,
            victims=case.victims or tuple(sorted(_list_others(case, ranks))),
            confidence=case.confidence if case.ranks else Confidence.LIKELY,
            details={"skipped": "", "went_on_to": ""},
            remedies=(),
        )
        return


def _is_apart(view: LogView, case: Case, events: Sequence[LogEvent]) -> bool:
    """Tell whether those that say so alone came to another op, or size, than the others wait in.

    Of two ranks, the ops do not tell whose is wrong, but the words of one do.
    """
    ranks = list_ranks(events)
    if case.code not in _APART or speaks_for_all(view, ranks) or any(one.is_past for one in events):
        return False
    if case.ranks or case.code != codes.OP_MISMATCH:
        return case.ranks == ranks
    ops: Mapping[str, str] = case.details.get("ops", {})
    own = {ops.get(str(rank), "") for rank in ranks}
    return "" not in own and own.isdisjoint(ops[str(one)] for one in _list_others(case, ranks))


def _list_others(case: Case, ranks: Sequence[int]) -> set[int]:
    return {int(rank) for rank in case.details.get("ops", {})} - set(ranks)
