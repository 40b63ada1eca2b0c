"""H104 by watchdogs that name the group, and by what is shown of its members and of orders.

A watchdog tells in which group a rank waits, and not who else is in it. Where that is shown, ranks
that wait in each other's groups are found. Of two ranks, one may as well have left out a call: in
which order each uses the groups tells.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import make_places
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.told_ops import ToldGroup, ToldOp, list_told_groups
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence, Place
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks, parse_ranks

_PAIR = 2
_MAX_LINES = 6
_MAX_PARTS = 4
_DESC = re.compile(r"\(([^()]{1,80})\)$")
_KIND = re.compile(r"[_ -]?(?:process[_ -]?)?(?:groups?|pgs?|comms?|ranks)$", re.IGNORECASE)
# `tensor_model_parallel`, as Megatron calls the groups whose short name is `tp`
_LONG = re.compile(
    r"(?P<first>expert_(?=tensor|data))?(?P<kind>tensor|data|pipe(?:line)?|expert|context|sequence|model)"
    r"(?:_model)?_parallel"
)
_Orders = Mapping[int, tuple[LogEvent, Sequence[str]]]


@dataclass(frozen=True)
class _Wait:
    """A rank that waits in a group: its op, the members, and those of them that did not come."""

    event: LogEvent
    group: str
    members: frozenset[int]
    missing: frozenset[int]


def make_crossed_orders(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that wait in different groups for each other."""
    waits = _list_waits(view)
    ring = _find_ring(waits)
    ranks = sorted(ring)
    groups = sorted({wait.group for wait in ring.values()})
    if len(ring) < _PAIR or len(groups) < _PAIR:
        return
    orders = _read_nexts(view, ring) | _read_orders(view)
    is_crossed = _are_crossed(ring, orders)
    is_clear = is_crossed or (len(ring) > _PAIR and not orders)
    parts = "; ".join(
        f"rank {rank} waits in group {wait.group} {sorted(wait.members)} for "
        f"{name_ranks(sorted(wait.missing & ring.keys()))}"
        for rank, wait in list(ring.items())[:_MAX_PARTS]
    )
    tail = (
        "they use the groups in different order"
        if is_clear
        else "they use the groups in different order, or one of them left out a call"
    )
    shown = [orders[rank][0] for rank in ranks if rank in orders] if is_crossed else []
    lines = [*(ring[rank].event for rank in ranks), *shown]
    yield Case(
        code=codes.GROUP_ORDER_CYCLE,
        summary=f"{name_ranks(ranks)} wait for each other in different groups: {parts}; {tail}",
        tier=PARTED - 1,
        ranks=tuple(ranks) if is_clear else (),
        victims=() if is_clear else tuple(ranks),
        lines=tuple(lines[:_MAX_LINES]),
        where=tuple(_place(view, ranks)),
        time=find_time(lines),
        confidence=Confidence.LIKELY if is_clear else Confidence.POSSIBLE,
        details={"ring": ranks, "groups": groups},
    )


def _place(view: LogView, ranks: Sequence[int]) -> Iterator[Place]:
    last = {one.rank: one.main for one in view.evidence.stacks if not one.worker}
    for rank in ranks:
        if (main := last.get(rank)) is not None:
            yield from make_places(rank, main.frames, 1)


def _list_waits(view: LogView) -> dict[int, _Wait]:
    """Return where ranks wait that wait in one group alone, whose members are shown."""
    members = _read_members(view)
    found: dict[int, list[_Wait]] = {}
    groups = [one for one in list_told_groups(view) if not one.is_of_members]
    timed = {rank for group in groups for rank in group.ops}
    names = {_name_group(group.name) for group in groups} - {""}
    shared = _read_shared(view, names) or _find_pair(view, groups)
    for group in groups:
        name = _name_group(group.name)
        told = {rank: (op.seq, op.event) for rank, op in group.ops.items()}
        # Where the line of the op is cut, the one below it tells that its rank gave up there.
        told |= {
            rank: (one.enqueued, one.event)
            for rank, one in group.statuses.items()
            if rank not in timed and one.enqueued == one.completed + 1 == one.seq
        }
        for rank, (seq, event) in told.items() if name else ():
            own = [one for one in members.get(name) or shared if rank in one]
            if len(own) == 1:
                missing = own[0] - {one for one in own[0] if _has_come(group, one, seq)}
                found.setdefault(rank, []).append(_Wait(event, name, own[0], missing))
    return {rank: waits[0] for rank, waits in found.items() if len(waits) == 1}


def _has_come(group: ToldGroup, rank: int, seq: int) -> bool:
    """Tell whether a rank is known to have issued so many ops of a group."""
    op, status = group.ops.get(rank), group.statuses.get(rank)
    is_there = op is not None and op.seq >= seq
    return is_there or (status is not None and status.enqueued >= seq)


def _find_ring(waits: Mapping[int, _Wait]) -> dict[int, _Wait]:
    """Return the ranks that wait for a rank of the ring, and for which one of it waits."""
    ring = dict(sorted(waits.items()))
    while ring:
        wanted = frozenset[int]().union(*(one.missing for one in ring.values()))
        kept = {
            rank: one for rank, one in ring.items() if rank in wanted and one.missing & ring.keys()
        }
        if len(kept) == len(ring):
            break
        ring = kept
    return ring


def _are_crossed(ring: Mapping[int, _Wait], orders: _Orders) -> bool:
    """Tell whether each rank is in the group that comes first for it, and later for whom it lacks.

    Whose order is not shown leaves it open.
    """
    for rank, wait in ring.items():
        for peer in wait.missing & ring.keys():
            theirs = ring[peer].group
            mine_first = _comes_first(orders.get(rank), wait.group, theirs)
            if not (mine_first and _comes_first(orders.get(peer), theirs, wait.group)):
                return False
    return True


def _comes_first(order: tuple[LogEvent, Sequence[str]] | None, one: str, other: str) -> bool:
    names = order[1] if order else ()
    return one in names and other in names and names.index(one) < names.index(other)


def _read_members(view: LogView) -> dict[str, set[frozenset[int]]]:
    found: dict[str, set[frozenset[int]]] = {}
    for event in view.list_signatures("table.members"):
        name = _name_group(event.groups["name"])
        found.setdefault(name, set()).add(parse_ranks(event.groups["members"]))
    for file in view.files:
        for name, sets in file.groups.items():
            found.setdefault(_name_group(name), set()).update(sets)
    return found


def _read_shared(view: LogView, names: Collection[str]) -> set[frozenset[int]]:
    """Return the members that somebody tells of all groups: of both, where there are two."""
    return {
        parse_ranks(event.groups["members"])
        for event in view.list_signatures("table.shared_members")
        if event.groups["many"].startswith("all") or len(names) == _PAIR
    }


def _find_pair(view: LogView, groups: Sequence[ToldGroup]) -> set[frozenset[int]]:
    """Return the two ranks of a job that wait in a group each, as the members of both.

    That it has two groups of two is told by the number of ranks, or by how much larger what all of
    a group give is than what one of them gives; and both say in which order they use the groups.
    """
    ops = [op for group in groups for op in group.ops.values()]
    ranks = {op.rank for op in ops}
    is_pair = ranks == set(range(_PAIR)) == view.ranks and len(ops) == _PAIR == len(groups)
    if not is_pair or not ranks <= _read_orders(view).keys():
        return set()
    told = {file.world_size for file in view.files} | {_count_members(op) for op in ops}
    are_own = all(op.event.groups.get("member") in (None, str(op.rank)) for op in ops)
    return {frozenset(ranks)} if told - {0} == {_PAIR} and are_own else set()


def _count_members(op: ToldOp) -> int:
    """Return how many ranks a group has by the sizes of one op, 0 where that does not tell it."""
    sizes = [prod(one) for one in op.sizes if one]
    is_told = len(sizes) == _PAIR and ("gather" in op.op or "scatter" in op.op)
    return max(sizes) // min(sizes) if is_told and min(sizes) > 0 else 0


def _read_orders(view: LogView) -> dict[int, tuple[LogEvent, Sequence[str]]]:
    """Return in which order ranks use groups, by the last line that shows it."""
    return {
        event.rank: (event, [_name_group(one) for one in event.groups["names"].split("\t")])
        for event in view.list_signatures("table.order")
        if event.rank >= 0
    }


def _read_nexts(
    view: LogView, ring: Mapping[int, _Wait]
) -> dict[int, tuple[LogEvent, Sequence[str]]]:
    """Return the order that somebody tells of a rank: where it is, and what it would call next."""
    groups = {wait.group for wait in ring.values()}
    called = [
        event
        for event in view.list_signatures("table.called")
        if event.rank in ring and _name_group(event.groups["group"]) == ring[event.rank].group
    ]
    group_of = {event.groups["func"]: _name_group(event.groups["group"]) for event in called}
    nexts = [(event, group_of.get(event.groups["next"], "")) for event in called]
    nexts += [
        (event, _name_group(event.groups["name"])) for event in view.list_signatures("table.next")
    ]
    return {
        event.rank: (event, (ring[event.rank].group, name))
        for event, name in nexts
        if event.rank in ring and name in groups
    }


def _name_group(text: str) -> str:
    """Return the name of a group without what says that it is one, in small letters."""
    found = _DESC.search(text)
    name = _KIND.sub("", (found[1] if found else text).strip()).lower().strip("_- ")
    long = _LONG.fullmatch(name)
    return f"{'e' if long['first'] else ''}{long['kind'][0]}p" if long else name
