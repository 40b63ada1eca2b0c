"""H104 by what ranks and tools tell of several groups: each waits in one for ranks of another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import make_places, select_user_frames
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.cases.stacks.stacked_groups import (
    StackedWait,
    describe_wait,
    list_noted_waits,
    list_stacked_waits,
)
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.told_ops import list_told_groups
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks, parse_ranks

_MAX_LINES = 6
_MAX_PARTS = 4
_PAIR = 2
# A loop so far above a call, and what says that it goes over something without an order.
_NEAR_LINES = 8
_FOR = re.compile(r"^\s{0,80}(?:async )?for \w")
# `sum(term(x) for term in set(self.terms))`, `for sync in {self.sync_a, self.sync_b}:`
_FOR_SET = re.compile(
    r"\bfor \w[\w, ]{0,60} in (?:(?:frozen)?set\(|\{\s?(?![^{}]{0,200}:)[^{}]{1,200}\})"
)
_UNORDERED = re.compile(
    r"\b(?:is|are|a|as) (?:a )?(?:python )?(?:frozen)?sets?\b|\b(?:frozen)?set\(|\bunordered\b"
    r"|\b(?:listdir|scandir|iterdir|i?glob)\(",
    re.IGNORECASE,
)
# Nearer to a cause than that a rank did not come to one of the groups: it waits in another.
_TIER = PARTED - 1


@dataclass(frozen=True)
class GroupWait:
    """Ranks that wait in an op of one group, and those that have not come to it."""

    waiting: frozenset[int]
    missing: frozenset[int]
    lines: tuple[LogEvent, ...]
    name: str = ""


def make_crossed(view: LogView) -> Iterator[Case]:
    """Make the case of groups whose missing ranks all wait in another of these groups."""
    told = [*_list_compared(view), *_list_counted(view)]
    waits = [one for one in told if one.waiting and one.missing]
    ring = _find_ring(waits)
    if not ring:
        sources = view.evidence.sources
        stacked = [*_tell_stacked(list_stacked_waits(view), sources)]
        noted = list_noted_waits(view) if not stacked else []
        # One line leads all of them to both groups, so that they are in both, or it is told.
        are_in_both = len(noted) >= _PAIR and (
            _are_in_any_order(noted, sources) or _are_members(view, noted)
        )
        is_any = any(view.list_signatures("table.unordered"))
        yield from stacked or (_tell_stacked(noted, sources, is_said=is_any) if are_in_both else ())
        return
    ranks = sorted(frozenset[int]().union(*(one.waiting | one.missing for one in ring)))
    parts = "; ".join(
        f"{name_ranks(sorted(one.waiting))} wait{'s' * (len(one.waiting) == 1)}"
        f"{f' in group {one.name}' if one.name else ''} for {name_ranks(sorted(one.missing))}"
        for one in ring[:3]
    )
    lines = [line for one in ring for line in one.lines]
    yield Case(
        code=codes.GROUP_ORDER_CYCLE,
        summary=f"{name_ranks(ranks)} wait for each other in different groups: {parts}; they use "
        "the groups in different order",
        tier=_TIER,
        victims=tuple(ranks),
        lines=tuple(lines[:_MAX_LINES]),
        time=find_time(lines),
        confidence=Confidence.LIKELY,
        details={"ring": ranks, "groups": sorted({one.name for one in ring} - {""})},
    )


def _find_ring(waits: Sequence[GroupWait]) -> list[GroupWait]:
    """Return the waits of a ring: whoever is missing in one of them waits in another of them."""
    ring = list(waits)
    while ring:
        waiting = frozenset[int]().union(*(one.waiting for one in ring))
        kept = [one for one in ring if one.missing <= waiting]
        if len(kept) == len(ring):
            break
        ring = kept
    # Of one group, ranks that wait and are missing at once are at different ops of it.
    return ring if len({(one.waiting, one.missing) for one in ring}) > 1 else []


def _are_members(view: LogView, waits: Sequence[StackedWait]) -> bool:
    """Tell whether it is said of all groups that these ranks are in them, or of both of two."""
    groups = {one.group for one in waits}
    return any(
        parse_ranks(event.groups["members"]) >= {one.rank for one in waits}
        and (event.groups["many"].startswith("all") or len(groups) == _PAIR)
        for event in view.list_signatures("table.shared_members")
    )


def _tell_stacked(
    waits: Sequence[StackedWait], sources: Mapping[str, str], *, is_said: bool = False
) -> Iterator[Case]:
    """Make the case of ranks whose stacks and groups show a ring: each waits for the next one.

    Of two ranks, one may as well have left out a call of the other group, unless the source shows
    that they come to their calls in any order, or somebody says so.
    """
    ring = list(waits)
    while ring:
        ranks = {one.rank for one in ring}
        wanted = frozenset[int]().union(*(one.missing for one in ring))
        kept = [one for one in ring if one.rank in wanted and one.missing & ranks]
        if len(kept) == len(ring):
            break
        ring = kept
    if len(ring) < _PAIR or len({one.group for one in ring}) < _PAIR:
        return
    ranks = {one.rank for one in ring}
    is_clear = len(ring) > _PAIR and all(one.is_noted for one in ring)
    is_clear |= is_said or _are_in_any_order(ring, sources)
    parts = "; ".join(
        f"rank {one.rank} waits in {one.group} {sorted(one.members)} for "
        f"{name_ranks(sorted(one.missing & ranks))}"
        for one in ring[:_MAX_PARTS]
    )
    yield Case(
        code=codes.GROUP_ORDER_CYCLE,
        summary=f"{name_ranks(sorted(ranks))} wait for each other in different groups: {parts}; "
        "they use the groups in different order",
        tier=_TIER,
        ranks=tuple(sorted(ranks)) if is_clear else (),
        victims=() if is_clear else tuple(sorted(ranks)),
        where=tuple(
            place
            for one in ring
            if (main := one.sample.main) is not None
            for place in make_places(one.rank, main.frames, 1)
        ),
        confidence=Confidence.LIKELY if is_clear else Confidence.POSSIBLE,
        details={"ring": sorted(ranks), "groups": sorted({one.group for one in ring})},
        cites=tuple(
            Citation(
                f"rank {one.rank} waits in {describe_wait(one.sample)} of group {one.group}",
                one.sample.artifact,
                one.sample.row,
            )
            for one in ring[:_MAX_LINES]
        ),
    )


def _are_in_any_order(ring: Sequence[StackedWait], sources: Mapping[str, str]) -> bool:
    """Tell whether one line led all ranks to their calls, in a loop over what has no order.

    The members of a set come in another order in each process: no rank is beside the others.
    """
    sites = [
        select_user_frames(main.frames) if (main := one.sample.main) is not None else ()
        for one in ring
    ]
    shared = 0
    for frames in zip(*map(reversed, sites), strict=False):
        if len(set(frames)) > 1:
            break
        shared += 1
    if not shared or any(len(site) <= shared for site in sites):
        return False
    functions = {site[-1 - shared].function for site in sites}
    if len(functions) != len({one.group for one in ring}):
        return False
    caller = sites[0][-shared]
    lines = sources.get(caller.file, "").split("\n")
    near = lines[max(0, caller.line - _NEAR_LINES) : caller.line]
    if near and (_FOR_SET.search(near[-1]) or any(_FOR_SET.match(one.lstrip()) for one in near)):
        return True
    return any(_FOR.search(line) for line in near) and any(map(_is_unordered, near))


def _is_unordered(line: str) -> bool:
    return _UNORDERED.search(line) is not None and "sorted(" not in line


def list_waits(view: LogView) -> list[GroupWait]:
    """Return who waits for whom, as a tool tells that knows the members of each group."""
    return list(_list_compared(view))


def _list_compared(view: LogView) -> Iterator[GroupWait]:
    """Yield what torchfrtrace tells of each group: the members stand below those that lack."""
    shown = list(view.list_signatures("frtrace.missing", "frtrace.expected"))
    for place, event in enumerate(shown):
        if event.signature != "frtrace.missing" or not is_said(event):
            continue
        missing = parse_ranks(event.groups.get("ranks") or "")
        members = _find_members(shown, place)
        if missing and members > missing and max(members) <= MAX_RANK:
            yield GroupWait(members - missing, missing, (event,))


def _find_members(shown: Sequence[LogEvent], place: int) -> frozenset[int]:
    """Return the members of a group: of lines that are the same, the first alone is kept."""
    behind = shown[place + 1 : place + 2]
    known = [one for one in behind if one.signature == "frtrace.expected"]
    known += [one for one in reversed(shown[:place]) if one.signature == "frtrace.expected"]
    missing = parse_ranks(shown[place].groups.get("ranks") or "")
    members = (parse_ranks(one.groups.get("ranks") or "") for one in known)
    return next((found for found in members if found > missing), frozenset())


def _list_counted(view: LogView) -> Iterator[GroupWait]:
    """Yield groups of which ranks tell their counters: who waits, and whose ops are all over."""
    groups = [one for one in list_told_groups(view) if one.name and not one.is_of_members]
    for group in groups if len(groups) > 1 else ():
        behind = min((op.seq for op in group.ops.values()), default=0)
        busy = {rank for rank, one in group.statuses.items() if not one.is_idle} | {*group.ops}
        idle = {
            rank
            for rank, one in group.statuses.items()
            if rank not in busy and one.is_idle and one.enqueued < behind
        }
        lines = [*(op.event for op in group.ops.values())]
        lines += [group.statuses[rank].event for rank in sorted(idle)]
        yield GroupWait(frozenset(busy), frozenset(idle), tuple(lines), group.name)
