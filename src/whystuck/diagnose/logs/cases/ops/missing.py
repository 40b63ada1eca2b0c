"""H101 as other tools tell it: ranks that did not come to an op in which the others wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.ops.crossed import GroupWait, list_waits
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.story import WAIT, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks, parse_ranks

_MAX_LINES = 6
_SIDES = 2
# Nearer to a cause than that ranks waited: it names whom they waited for.
_TIER = WAIT - 5


def make_missing(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that a tool which knows all ranks of a group calls missing."""
    events = [
        event for event in view.list_events(codes.RANK_NEVER_JOINED, "cause") if is_said(event)
    ]
    if not events:
        return
    named = _read_missing(events)
    ranks = sorted(frozenset[int]().union(*named))
    ready = {rank for one in events for rank in parse_ranks(one.groups.get("ready") or "")}
    if any(rank > MAX_RANK for rank in ranks):
        return
    waits = list_waits(view)
    if len(waits) > 1 and len({wait.waiting | wait.missing for wait in waits}) > 1:
        yield from _make_of_groups(waits)
        return
    joined = _find_members(view, events, ready) - set(ranks)
    if 0 < len(joined) < len(ranks):
        yield _make_extra(events, sorted(joined), ranks)
        return
    if (apart := _find_apart(named, set(ranks) | ready)) is not None:
        yield _make_apart(events, apart, set(ranks) - set(apart))
        return
    # Where several ops lack different ranks, their orders differ, and nobody alone is late.
    is_one = len(named) == 1
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


def _make_of_groups(waits: Sequence[GroupWait]) -> Iterator[Case]:
    """Make the case of groups that lack different ranks: who waits in no other group is late."""
    waiting = frozenset[int]().union(*(wait.waiting for wait in waits))
    ranks = sorted(frozenset[int]().union(*(wait.missing for wait in waits)) - waiting)
    lines = [line for wait in waits for line in wait.lines]
    if not ranks:
        return
    yield Case(
        code=codes.RANK_NEVER_JOINED,
        summary=f"{name_ranks(ranks)} did not come to collectives of {len(waits)} groups in which "
        "the others wait",
        tier=_TIER,
        ranks=tuple(ranks),
        victims=tuple(sorted(waiting)),
        lines=tuple(lines[:_MAX_LINES]),
        time=find_time(lines),
        details={"state": "unknown", "missing": ranks, "ready": sorted(waiting)},
        remedies=(f"py-spy dump --pid PID   # of {name_ranks(ranks)}: where it is instead",),
    )


def _find_members(view: LogView, events: list[LogEvent], ready: set[int]) -> frozenset[int]:
    """Return the members of the group: torchfrtrace tells them a few lines further down."""
    last = events[-1]
    for other in view.list_signatures("frtrace.expected"):
        if other.artifact == last.artifact and other.row > last.row:
            return parse_ranks(other.groups.get("ranks") or "")
    return frozenset(ready)


def _find_apart(named: set[frozenset[int]], told: set[int]) -> tuple[int, ...] | None:
    """Find the few ranks that are in other ops than all others: what these lack, those wait in.

    Where the two sides are as large as each other, either may have left the other.
    """
    sides = sorted(named, key=len)
    if len(sides) != _SIDES or sides[0] & sides[1] or sides[0] | sides[1] != told:
        return None
    return tuple(sorted(sides[0])) if 2 * len(sides[0]) < len(sides[1]) + 1 else None


def _make_apart(events: list[LogEvent], ranks: tuple[int, ...], others: set[int]) -> Case:
    """Make the case of few ranks that wait in an op of their own, and miss those of the others."""
    who, rest = name_ranks(ranks), name_ranks(sorted(others))
    return Case(
        code=codes.RANK_NEVER_JOINED,
        summary=f"{who} did not come to the ops in which {rest} wait, and waits in others, to "
        "which nobody else came: it left what they are still in",
        tier=_TIER,
        ranks=ranks,
        victims=tuple(sorted(others)),
        lines=tuple(sorted(events, key=lambda one: _read_lacking(one) not in ranks)[:_MAX_LINES]),
        time=find_time(events),
        details={"state": "unknown", "missing": list(ranks), "ready": sorted(others)},
        remedies=(f"py-spy dump --pid PID   # of {who}: which op it waits in, and from where",),
    )


def _read_lacking(event: LogEvent) -> int:
    own = event.groups.get("ranks2") or ""
    return int(own) if own.isdecimal() else -1


def _make_extra(events: list[LogEvent], joined: list[int], missing: list[int]) -> Case:
    """Make the case of a collective to which most did not come: those that did may be wrong."""
    return Case(
        code=codes.EXTRA_COLLECTIVE,
        summary=f"{name_ranks(joined)} called a collective to which {name_ranks(missing)} did not "
        "come: most ranks are elsewhere",
        tier=_TIER,
        ranks=tuple(joined) if len(joined) == 1 else (),
        lines=tuple(events[:_MAX_LINES]),
        time=find_time(events),
        confidence=Confidence.POSSIBLE,
        details={"missing": missing, "joined": joined},
        remedies=(f"py-spy dump --pid PID   # of rank {joined[0]} and of one of the others",),
    )


def _read_missing(events: list[LogEvent]) -> set[frozenset[int]]:
    """Return the sets of ranks that ops lack; Horovod lists the ops that each rank lacks."""
    lacking: dict[str, set[int]] = {}
    for event in events:
        if own := event.groups.get("ranks2"):
            for op in event.text.partition("[")[2].rstrip().rstrip("]").split(", "):
                lacking.setdefault(op, set()).update(parse_ranks(own))
        else:
            ranks = parse_ranks(event.groups.get("ranks") or "")
            lacking.setdefault(f"line {event.artifact}:{event.row}", set()).update(ranks)
    return {frozenset(ranks) for ranks in lacking.values() if ranks}
