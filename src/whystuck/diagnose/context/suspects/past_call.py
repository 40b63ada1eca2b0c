"""Few ranks of pasted stacks that wait behind a call which most ranks are still inside."""

from __future__ import annotations

import re
from collections.abc import Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import describe_place, select_user_frames
from whystuck.diagnose.algorithms.stacks.positions import (
    Doing,
    Position,
    is_device_wait,
    is_in_c10d,
    name_call,
)
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.stack_sides import Parting, Side
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks

_LEAST_RANKS = 3
_LEAST_PLACES = 2
_PIPELINE = re.compile(r"send|recv|p2p|pipeline|schedule", re.IGNORECASE)


def find_past_call(facts: Facts) -> Parting | None:
    """Find ranks that wait in a collective behind a call of a function that all others are in.

    Nobody passes that collective without them, so they are ahead. The others wait inside, at
    several lines, for ranks that do not come there any more: mostly, that is a loop which was
    shorter on a few ranks. Where all of them wait at one line, they are in an op of their own.

    Args:
        facts: The evidence. Only stacks that somebody pasted are judged: in a stall that whystuck
            sees, who computes in backward is measured.
    """
    samples = facts.evidence.stacks
    is_pasted = bool(samples) and all(sample.row is not None for sample in samples)
    positions = facts.stacks.positions
    if not is_pasted or facts.ops.recorded_ranks or facts.waits.pending or facts.exits.dead:
        return None
    if set(positions) != facts.ranks.all or len(positions) < _LEAST_RANKS:
        return None
    sites = {rank: select_user_frames(one.frames) for rank, one in sorted(positions.items())}
    for rank, site in sites.items():
        past = tuple(one for one, other in sites.items() if other == site)
        inside = tuple(one for one in sites if one not in past)
        call = _find_call(site, [sites[one] for one in inside])
        if call is None or len(inside) <= len(past) or not _waits_for_all(positions[rank]):
            continue
        if _may_wait_for_one([positions[one] for one in inside]):
            return _accuse(facts, past, inside, call)
    return None


def _find_call(site: Sequence[Frame], others: Sequence[Sequence[Frame]]) -> Frame | None:
    """Return the call that all others are inside, at several lines, and that a site is behind."""
    if not others or len({tuple(other) for other in others}) < _LEAST_PLACES:
        return None
    for at, frame in enumerate(reversed(site)):
        calls = {other[-1 - at] for other in others if len(other) > at + 1}
        if len(calls) != 1 or any(len(other) <= at + 1 for other in others):
            return None
        call = calls.pop()
        if (call.file, call.function) != (frame.file, frame.function):
            return None
        if call.line != frame.line:
            return call if frame.line > call.line > 0 else None
    return None


def _waits_for_all(position: Position) -> bool:
    """Tell whether a rank is in a collective itself, rather than in a wait for its device."""
    return position.doing is Doing.COLLECTIVE and is_in_c10d(position.frames)


def _may_wait_for_one(positions: Sequence[Position]) -> bool:
    """Return whether ranks may all wait in one op, and one is sure to wait.

    That is backward, or a collective at one line; whoever waits for its device waits for either.
    Ranks in two such places keep each other, and those of a pipeline finish one after another.
    """
    rest = [one for one in positions if not is_device_wait(one.frames)]
    if not {one.doing for one in rest} <= {Doing.COLLECTIVE, Doing.BACKWARD}:
        return False
    if any(_is_of_pipeline(frame) for one in positions for frame in one.frames):
        return False
    return len({(one.doing, select_user_frames(one.frames)) for one in rest}) <= 1


def _is_of_pipeline(frame: Frame) -> bool:
    return bool(_PIPELINE.search(f"{frame.file.rpartition('/')[2]} {frame.function}"))


def _accuse(facts: Facts, past: tuple[int, ...], inside: tuple[int, ...], call: Frame) -> Parting:
    positions = facts.stacks.positions
    groups: dict[tuple[Frame, ...], list[int]] = {}
    for rank in (*past, *inside):
        groups.setdefault(select_user_frames(positions[rank].frames), []).append(rank)
    sides = [
        Side(tuple(ranks), name_call(positions[ranks[0]].frames), site)
        for site, ranks in groups.items()
    ]
    still = "is still" if len(inside) == 1 else "are still"
    places = {rank: select_user_frames(positions[rank].frames)[:2] for rank in past}
    return Parting(
        codes.LEFT_EARLY,
        Confidence.POSSIBLE,
        f"{name_ranks(past)} left early what was called in {describe_place(call)}, where "
        f"{name_ranks(inside)} {still}",
        tuple(sides),
        past,
        {rank: (*frames, call) for rank, frames in places.items()},
    )
