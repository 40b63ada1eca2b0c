"""H101 as other tools tell it: ranks that did not come to an op in which the others wait."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.story import WAIT, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks, parse_ranks

_MAX_LINES = 6
# Nearer to a cause than that ranks waited: it names whom they waited for.
_TIER = WAIT - 5


def make_missing(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that a tool which knows all ranks of a group calls missing."""
    events = [
        event for event in view.list_events(codes.RANK_NEVER_JOINED, "cause") if is_said(event)
    ]
    if not events:
        return
    named = [_read_missing(event) for event in events]
    ranks = sorted(frozenset[int]().union(*named))
    ready = {rank for one in events for rank in parse_ranks(one.groups.get("ready") or "")}
    if any(rank > MAX_RANK for rank in ranks):
        return
    # Where several ops lack different ranks, their orders differ, and nobody alone is late.
    is_one = len({found for found in named if found}) == 1
    blamed = ranks if is_one and ready.isdisjoint(ranks) else []
    who = name_ranks(ranks) if ranks else "a rank"
    yield Case(
        code=codes.RANK_NEVER_JOINED,
        summary=f"{who} did not come to a collective in which the others wait",
        tier=_TIER,
        ranks=tuple(blamed),
        victims=tuple(sorted((ready | view.ranks) - set(ranks))),
        lines=tuple(events[:_MAX_LINES]),
        time=find_time(events),
        confidence=Confidence.LIKELY if blamed else Confidence.POSSIBLE,
        details={"state": "unknown", "missing": ranks, "ready": sorted(ready)},
        remedies=(f"py-spy dump --pid PID   # of {who}: where it is instead",),
    )


def _read_missing(event: LogEvent) -> frozenset[int]:
    return parse_ranks(event.groups.get("ranks") or event.groups.get("ranks2") or "")
