"""H108 by the splits that ranks print before an all-to-all in which they wait.

What a rank gives to another one has to be what that one takes from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    calls = _read_calls(view)
    last = {rank: told[-1] for rank, told in calls.items()}
    waits = _list_waits(view)
    if not _is_one_call(calls, waits) or not (waits or _is_shown_in_one(view)):
        return
    pairs = _compare(last)
    odd, why = _blame(pairs, calls)
    # Where many differ, with nobody in common, the lists are hardly of one call of one group.
    if not pairs or (not odd and len(pairs) > len(last) // 2):
        return
    first = pairs[0]
    ends = sorted(frozenset[int]().union(*(pair.ends for pair in pairs)))
    more = f" (and {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""
    which = (
        f"the splits of {name_ranks(odd)} are wrong: {why}"
        if odd
        else ("which of the two is wrong cannot be told")
    )
    lines = [last[rank].event for rank in (*odd, *(one for one in ends if one not in odd))]
    yield Case(
        code=codes.SPLIT_MISMATCH,
        summary=f"rank {first.sender} sends {first.sent} to rank {first.receiver} in an "
        f"all-to-all, which expects {first.expected}{more}; {which}",
        tier=PARTED - 1,
        ranks=odd,
        victims=tuple(sorted(last.keys() - set(odd))),
        lines=(*lines, *waits)[:_MAX_LINES],
        time=find_time(waits),
        confidence=Confidence.LIKELY,
        details={
            "pair": [first.sender, first.receiver],
            "sent": first.sent,
            "expected": first.expected,
            "group": "",
            "sequence": max((_read_seq(event) for event in waits), default=0),
            "pairs": [
                [pair.sender, pair.receiver, pair.sent, pair.expected]
                for pair in pairs[:_MAX_PAIRS]
            ],
        },
        scope=frozenset(last),
    )


def _read_calls(view: LogView) -> dict[int, list[_Call]]:
    """Return the calls of which each rank tells both lists."""
    calls: dict[int, list[_Call]] = {}
    begun: dict[int, tuple[str, dict[str, _Sizes]]] = {}
    for event in sorted(
        view.list_signatures("table.splits"), key=lambda one: (one.artifact, one.row)
    ):
        groups = event.groups
        rank = int(groups["own"]) if groups["own"] else event.rank
        if rank < 0:
            continue
        name, lists = begun.get(rank, ("", {}))
        lists = lists if name == groups["call"] else {}
        lists[groups["way"]] = tuple(int(size) for size in groups["sizes"].split())
        begun[rank] = groups["call"], lists
        if len(lists) == 2:  # noqa: PLR2004 - what is given and what is taken
            call = _Call(groups["call"], lists["given"], lists["taken"], event)
            calls.setdefault(rank, []).append(call)
            del begun[rank]
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
