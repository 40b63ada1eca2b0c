"""H110 by how many micro-batches the stages of a pipeline say that a step has.

Each send of a stage is a receive of the next one. A stage that runs fewer than the others leaves
the last ones out, and one that runs more waits for some that nobody sends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import make_places, name_function
from whystuck.diagnose.algorithms.stacks.positions import Doing, Position, is_transferring, locate
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.told_ops import list_told_groups
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

# Two stages that differ tell nothing: either may be wrong.
_LEAST = 3
_MAX_LINES = 6
_PAIR = 2
_TRANSFER = re.compile(r"(?:^|_)i?(?:send|recv)(?:_|$)|p2p")
_GONE_ON = {Doing.COLLECTIVE, Doing.BACKWARD, Doing.TEARDOWN, Doing.EXITING}


@dataclass(frozen=True)
class _Waits:
    """Which ranks wait in a transfer, and which in something else, with the lines that say so."""

    inside: frozenset[int]
    outside: frozenset[int]
    lines: tuple[LogEvent, ...]


def make_micro_batches(view: LogView) -> Iterator[Case]:
    """Make the case of few stages that run more or fewer micro-batches than all others.

    Somebody must wait in a transfer. Replicas of a pipeline may differ, with nobody who waits so.
    """
    events = _read_counts(view)
    counts = {rank: int(event.groups["count"]) for rank, event in events.items()}
    if len(counts) < _LEAST:
        return
    common, _ = Counter(counts.values()).most_common(1)[0]
    odd = tuple(sorted(rank for rank, count in counts.items() if count != common))
    others = tuple(sorted(counts.keys() - set(odd)))
    positions = _list_positions(view)
    waits = _list_waits(view, positions)
    are_fewer = {counts[rank] < common for rank in odd}
    if not 0 < 2 * len(odd) < len(counts) or len(are_fewer) != 1:
        return
    is_fewer = are_fewer.pop()
    # Who runs fewer goes on while others wait for it; who runs more waits while others go on.
    waiting = waits.inside & set(others if is_fewer else odd)
    gone_on = waits.outside & set(odd if is_fewer else others)
    if not waiting:
        return
    first = min(counts[odd[0]], common)
    nearest = min(waiting if is_fewer else others, key=lambda rank: (abs(rank - odd[0]), -rank))
    yield Case(
        code=codes.P2P_UNMATCHED,
        summary=_describe(odd, counts[odd[0]], common),
        tier=PARTED - 1,
        ranks=odd,
        victims=others,
        lines=(*(events[rank] for rank in (*odd, *others)[:_MAX_LINES]), *waits.lines[:_PAIR]),
        where=tuple(
            place
            for rank in odd
            if rank in positions
            for place in make_places(rank, positions[rank].frames, _PAIR)
        ),
        time=find_time(waits.lines),
        confidence=Confidence.LIKELY if gone_on else Confidence.POSSIBLE,
        details={
            "pair": [nearest, odd[0]],
            "op": "recv",
            "waiting_rank": nearest if is_fewer else odd[0],
            "micro_batch": first,
        },
        remedies=("print the number of micro-batches on all stages: it has to be one number",),
        scope=frozenset(counts),
    )


def _describe(odd: Sequence[int], count: int, common: int) -> str:
    who, runs = name_ranks(odd), "runs" if len(odd) == 1 else "run"
    does = (
        f"number {count + 1} is not passed on there"
        if count < common
        else f"nobody passes on number {common + 1}"
    )
    return f"{who} {runs} {count} micro-batches in a step, where all others run {common}: {does}"


def _read_counts(view: LogView) -> dict[int, LogEvent]:
    """Return what each rank says of its steps; nothing where that changes from step to step.

    A stage counts as a rank where nothing else is told.
    """
    told = [one for one in view.list_signatures("table.batches") if one.groups["kind"]]
    stages = {int(one.groups["stage"]) for one in told if one.groups["stage"]}
    is_one_each = stages == set(range(len(stages))) and view.world_size in (0, len(stages))
    found: dict[int, LogEvent] = {}
    for event in told:
        stage = event.groups["stage"]
        rank = int(stage) if event.rank < 0 and is_one_each and stage else event.rank
        if rank < 0:
            continue
        if found.setdefault(rank, event).groups["count"] != event.groups["count"]:
            return {}
    return found


def _list_positions(view: LogView) -> dict[int, Position]:
    last = {one.rank: one.main for one in view.evidence.stacks if not one.worker and one.rank >= 0}
    return {rank: locate(main.frames) for rank, main in last.items() if main is not None}


def _list_waits(view: LogView, positions: Mapping[int, Position]) -> _Waits:
    """List who waits in a transfer, and who in something else, by stacks and by watchdogs."""
    ops = [op for group in list_told_groups(view) for op in group.ops.values()]
    inside = {op.rank for op in ops if op.is_transfer and not op.is_member}
    outside = {op.rank for op in ops if not op.is_transfer and not op.is_member}
    for rank, position in positions.items():
        if _is_in_transfer(position):
            inside.add(rank)
        elif position.doing in _GONE_ON:
            outside.add(rank)
    # Who gave up both waits for itself.
    return _Waits(
        frozenset(inside - outside),
        frozenset(outside - inside),
        tuple(op.event for op in ops if op.is_transfer),
    )


def _is_in_transfer(position: Position) -> bool:
    """Tell whether a stack waits in a send or a receive of torch, or in a function called so."""
    is_named = any(_TRANSFER.search(name_function(one)) for one in position.frames)
    is_waiting = position.doing is Doing.COLLECTIVE
    return is_waiting and (is_named or is_transferring(position.frames))
