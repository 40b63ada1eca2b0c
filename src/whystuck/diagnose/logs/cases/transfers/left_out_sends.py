"""H110 by the words of a rank: it says again and again that it sends nothing, and others wait."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
_MAX_TEXT = 100
_RECEIVES = {"recv", "recvanysource"}
# Once may be the turn of a step in which nothing is due.
_LEAST = 2
_SOURCE = re.compile(r"\b(?:src|source|peer) ?= ?(\d{1,7})\b")


def make_left_out_sends(view: LogView) -> Iterator[Case]:
    """Make the case of the one rank that says that it sends nothing, while others wait to receive.

    Where several say so, it is what ranks do that have nothing to send; and one that waits in a
    receive itself has its reason there.
    """
    waits = [
        event
        for event in view.list_signatures(*WAITS)
        if is_said(event) and (event.groups.get("op") or "").lower() in _RECEIVES
    ]
    raised = tuple(item for item in view.exceptions if is_timeout(item))
    receiving = set(list_ranks(waits)) - {-1}
    told = [
        event
        for event in view.list_signatures("p2p.left_out")
        if is_said(event) and not event.is_past
    ]
    ranks = list_ranks(told)
    waiting = receiving | set(list_ranks(raised))
    if len(ranks) != 1 or any(event.rank < 0 for event in told):
        return
    count = sum(event.count for event in told)
    named = _list_named(view)
    if not receiving or ranks[0] in waiting or count < _LEAST or (named and ranks[0] not in named):
        return
    words = told[-1].text.strip()[:_MAX_TEXT]
    yield Case(
        code=codes.P2P_UNMATCHED,
        summary=f"{name_ranks(ranks)} left out what it was to send, as it says itself: `{words}`; "
        f"{name_ranks(sorted(receiving))} waited in a receive until a time limit",
        tier=PARTED - 1,
        ranks=ranks,
        victims=tuple(sorted(waiting)),
        lines=(*told[:2], *waits)[:_MAX_LINES],
        exceptions=raised,
        time=find_time(waits, raised),
        confidence=Confidence.LIKELY,
        details={
            "pair": [min(receiving), ranks[0]],
            "op": "recv",
            "waiting_rank": min(receiving),
        },
        remedies=(
            (
                "send in each round, be it an empty message, or let both ends skip it by a "
                "condition that both know"
            ),
        ),
    )


def _list_named(view: LogView) -> set[int]:
    """Return the ranks that the lines of receives in tracebacks name as their senders."""
    calls = (one for one in view.list_signatures("source.transfer") if "recv" in one.text)
    return {int(found[1]) for one in calls if (found := _SOURCE.search(one.text))}
