"""H108 by the splits that ranks print before an all-to-all in which they wait.

What a rank gives to another one has to be what that one takes from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import name_function
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks

_LEAST = 2
_LEAST_ALIKE = 2
_MAX_LINES = 6
_MAX_PAIRS = 16
_INNERMOST = 3
_Sizes = tuple[int, ...]


@dataclass(frozen=True)
class _Call:
    """The splits of one call of a rank; ``name`` tells the layer and step, where that is told."""

    name: str
    given: _Sizes
    taken: _Sizes
    event: LogEvent

    @property
    def sizes(self) -> tuple[_Sizes, _Sizes]:
        """Both lists."""
        return self.given, self.taken


@dataclass(frozen=True)
class _Pair:
    """A rank that gives another one not what that one takes from it."""

    sender: int
    receiver: int
    sent: int
    expected: int

    @property
    def ends(self) -> frozenset[int]:
        """Both ranks."""
        return frozenset({self.sender, self.receiver})


def make_told_splits(view: LogView) -> Iterator[Case]:
    """Make the case of ranks whose splits do not fit, in the last call that each of them tells."""
    calls = _read_calls(view, _find_rank)
    last = {rank: told[-1] for rank, told in calls.items()}
    waits = _list_waits(view)
    if not _is_one_call(calls, waits) or not (waits or _is_shown_in_one(view)):
        yield from _make_partly_told(view, waits)
        return
    pairs = _compare(last)
    odd, why = _blame(pairs, calls)
    # Where many differ, with nobody in common, the lists are hardly of one call of one group.
    if pairs and (odd or len(pairs) <= len(last) // 2):
        yield _tell(last, pairs, waits, odd=odd, why=why)


def _make_partly_told(view: LogView, waits: Sequence[LogEvent]) -> Iterator[Case]:
    """Make the case of splits of which some ranks tell some, or that have no ranks but seats.

    That these are of one call of one group is known by the others, which fit.
    """
    numbers = {_read_seq(event) for event in waits}
    if len(numbers) != 1:
        return
    ranks, seats = (_read_calls(view, find, is_part=True) for find in (_find_rank, _find_seat))
    calls = ranks or seats
    last = {rank: told[-1] for rank, told in calls.items()}
    names = {call.name for call in last.values()}
    first = _find_first(last, is_whole=not ranks)
    if len(last) < _LEAST or first is None or len(names) != 1 or "" in names:
        return
    # Seats of several groups tell the same call once for each group.
    if not ranks and any(sum(one.name in names for one in told) > 1 for told in calls.values()):
        return
    parts = {call.event.groups["part"] for call in last.values()} if not ranks else {"rank"}
    pairs = _compare_partly(last, first)
    if pairs and len(parts) == 1:
        yield _tell(last, pairs, waits, part=parts.pop())


def _find_first(last: Mapping[int, _Call], *, is_whole: bool) -> int | None:
    """Return the rank of the first place in the lists: all are of one length, and tell their ranks.

    Where they do not, ranks from 0 on without a gap are the first ones of their group.
    """
    lists = [one for call in last.values() for one in call.sizes if one]
    spans = {call.event.groups["span"] for call in last.values()}
    size = len(lists[0]) if lists else 0
    if any(len(one) != size or len(set(one)) <= size // 2 for one in lists) or len(spans) != 1:
        return None
    first, _, end = spans.pop().partition(" ")
    if first:
        is_fit = int(end) - int(first) + 1 == size
        return int(first) if is_fit and int(first) <= min(last) and max(last) <= int(end) else None
    is_fit = len(last) == size if is_whole else len(last) < size
    return 0 if is_fit and set(last) == set(range(len(last))) else None


def _compare_partly(last: Mapping[int, _Call], first: int) -> list[_Pair]:
    """List the pairs that do not fit, if those that do fit link all that tell their splits."""
    told = [
        _Pair(sender, to, given[to - first], taken[sender - first])
        for sender in sorted(last)
        for to in sorted(last)
        if (given := last[sender].given) and (taken := last[to].taken)
    ]
    fits = [one for one in told if one.sent == one.expected and one.sender != one.receiver]
    pairs = [one for one in told if one.sent != one.expected]
    linked = {min(last)}
    for _ in last:
        linked |= {end for one in fits if one.ends & linked for end in one.ends}
    is_odd = len(pairs) > len(fits) or any(one.sender == one.receiver for one in pairs)
    return [] if is_odd or linked != set(last) else pairs


def _tell(
    last: Mapping[int, _Call],
    pairs: Sequence[_Pair],
    waits: Sequence[LogEvent],
    *,
    odd: tuple[int, ...] = (),
    why: str = "",
    part: str = "rank",
) -> Case:
    """Tell of the pairs that do not fit; seats in a ``part`` of the job are no ranks."""
    first = pairs[0]
    ends = sorted(frozenset[int]().union(*(pair.ends for pair in pairs)))
    more = f" (and {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""
    which = (
        f"the splits of {name_ranks(odd)} are wrong: {why}"
        if odd
        else ("which of the two is wrong cannot be told")
    )
    lines = [last[rank].event for rank in (*odd, *(one for one in ends if one not in odd))]
    are_ranks = part == "rank"
    others = set(last) - set(odd) if are_ranks else {one.rank for one in waits} - {-1}
    told = [[one.sender, one.receiver, one.sent, one.expected] for one in pairs[:_MAX_PAIRS]]
    return Case(
        code=codes.SPLIT_MISMATCH,
        summary=f"{part} {first.sender} sends {first.sent} to {part} {first.receiver} in an "
        f"all-to-all, which expects {first.expected}{more}; {which}",
        tier=PARTED - 1,
        ranks=odd,
        victims=tuple(sorted(others)),
        lines=(*lines, *waits)[:_MAX_LINES],
        time=find_time(waits),
        confidence=Confidence.LIKELY,
        details={
            **({"pair": [first.sender, first.receiver]} if are_ranks else {}),
            "sent": first.sent,
            "expected": first.expected,
            "group": "",
            "sequence": max((_read_seq(event) for event in waits), default=0),
            **({"pairs": told} if are_ranks else {}),
        },
        scope=frozenset(last) if are_ranks else frozenset(others),
    )


def _find_rank(event: LogEvent) -> int:
    return int(event.groups["own"]) if event.groups["own"] else event.rank


def _find_seat(event: LogEvent) -> int:
    seat = event.groups["seat"]
    return int(seat) if seat and _find_rank(event) < 0 else -1


def _read_calls(
    view: LogView, find_owner: Callable[[LogEvent], int], *, is_part: bool = False
) -> dict[int, list[_Call]]:
    """Return the calls of which each rank tells both lists, or with ``is_part`` the last one."""
    calls: dict[int, list[_Call]] = {}
    begun: dict[int, tuple[LogEvent, dict[str, _Sizes]]] = {}
    for event in sorted(
        view.list_signatures("table.splits"), key=lambda one: (one.artifact, one.row)
    ):
        groups, rank = event.groups, find_owner(event)
        if rank < 0:
            continue
        before, lists = begun.get(rank, (event, {}))
        lists = lists if before.groups["call"] == groups["call"] else {}
        lists[groups["way"]] = tuple(int(size) for size in groups["sizes"].split())
        begun[rank] = event, lists
        if len(lists) == 2:  # noqa: PLR2004 - what is given and what is taken
            call = _Call(groups["call"], lists["given"], lists["taken"], event)
            calls.setdefault(rank, []).append(call)
            del begun[rank]
    for rank, (event, lists) in begun.items() if is_part else ():
        call = _Call(event.groups["call"], lists.get("given", ()), lists.get("taken", ()), event)
        calls.setdefault(rank, []).append(call)
    return calls


def _list_waits(view: LogView) -> list[LogEvent]:
    """List the lines of ranks that waited in an all-to-all until its time limit."""
    return [
        event
        for event in view.list_signatures(*WAITS)
        if is_said(event) and _is_all_to_all(event.groups.get("op") or "")
    ]


def _is_all_to_all(name: str) -> bool:
    return name.lower().replace("_", "").startswith("alltoall")


def _is_shown_in_one(view: LogView) -> bool:
    """Tell whether a stack or a traceback shows a rank inside an all-to-all."""
    mains = (one.main for one in view.evidence.stacks if not one.worker)
    stacks: Iterable[Sequence[Frame]] = (
        *(main.frames for main in mains if main is not None),
        *(item.frames for item in view.exceptions),
    )
    return any(
        _is_all_to_all(name_function(frame)) for frames in stacks for frame in frames[:_INNERMOST]
    )


def _read_seq(event: LogEvent) -> int:
    seq = event.groups.get("seq") or ""
    return int(seq[:18]) if seq.isdecimal() else 0


def _is_one_call(calls: Mapping[int, Sequence[_Call]], waits: Sequence[LogEvent]) -> bool:
    """Tell whether the last lists of all ranks are of one call, and of all ranks of a group."""
    last = [told[-1] for told in calls.values()]
    sizes = {len(one) for call in last for one in call.sizes}
    if len(last) < _LEAST or sizes != {len(last)}:
        return False
    if len({call.name for call in last}) > 1:
        return False
    numbers = {event.rank: _read_seq(event) for event in waits if event.rank in calls}
    are_counted = len(numbers) == len(last) and len(set(numbers.values())) == 1
    if len(set(numbers.values())) > 1:
        return False
    return bool(last[0].name) or are_counted or len({len(told) for told in calls.values()}) == 1


def _compare(last: Mapping[int, _Call]) -> list[_Pair]:
    """List the pairs that do not fit; splits are in the order of ranks."""
    order = sorted(last)
    return [
        _Pair(sender, receiver, sent, expected)
        for at, sender in enumerate(order)
        for to, receiver in enumerate(order)
        if (sent := last[sender].given[to]) != (expected := last[receiver].taken[at])
    ]


def _blame(
    pairs: Sequence[_Pair], calls: Mapping[int, Sequence[_Call]]
) -> tuple[tuple[int, ...], str]:
    """Name the rank whose splits are wrong, and say how that is known."""
    if not pairs:
        return (), ""
    common = frozenset.intersection(*(pair.ends for pair in pairs))
    if len(common) == 1:
        return tuple(common), "they fit those of no other rank named"
    ends = sorted(common)
    most, count = Counter(told[-1].sizes for told in calls.values()).most_common(1)[0]
    odd = tuple(rank for rank in ends if calls[rank][-1].sizes != most)
    if len(odd) == 1 and count == len(calls) - 1 >= _LEAST_ALIKE:
        return odd, "all other ranks have the same"
    changed = {rank: _has_changed(calls[rank]) for rank in ends}
    odd = tuple(rank for rank in ends if changed[rank])
    if len(odd) == 1 and None not in changed.values():
        return odd, "it had others each time before"
    return (), ""


def _has_changed(told: Sequence[_Call]) -> bool | None:
    """Tell whether the last call of a rank differs from all before; None when these vary."""
    before = {call.sizes for call in told[:-1]}
    return told[-1].sizes not in before if len(before) == 1 else None
