"""Ranks of pasted stacks that wait for each other in transfers, while all others are past them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whystuck.diagnose.algorithms.stacks.frames import select_user_frames
from whystuck.diagnose.algorithms.stacks.positions import name_call
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.logs.cases.transfers.transfer_rings import (
    list_transfer_calls,
    makes_half_first,
)
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ops.collectives import Frame

_PAIR = 2
_HALVES = {"send", "recv"}


@dataclass(frozen=True)
class CrossedTransfers:
    """The ranks that all wait in one half of a transfer, and the source that shows its order."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    half: str
    source: tuple[LogEvent, ...]


def find_crossed_transfers(facts: Facts) -> CrossedTransfers | None:
    """Find ranks at one line of a send, or of a receive, whose peers are at that line as well.

    Stacks do not tell who the peer of a rank is. Source beside them that makes both halves with the
    same peer tells that each peer comes by that line, too. Others are past it: their transfers are
    over, and with them those of their peers. So the peers are among the ranks that are there.

    Args:
        facts: The evidence, without any record of ops: records tell peers, and are judged as such.
    """
    samples = facts.evidence.stacks
    is_pasted = bool(samples) and all(sample.row is not None for sample in samples)
    if not is_pasted or facts.ops.recorded_ranks or facts.waits.pending or facts.exits.dead:
        return None
    ranks = tuple(sorted(facts.waits.in_transfer_by_stack))
    others = tuple(sorted(facts.waits.waiting_by_stack - set(ranks)))
    if not ranks or len(ranks) % _PAIR or not others or {*ranks, *others} != facts.ranks.all:
        return None
    positions = facts.stacks.positions
    halves = {name_call(positions[rank].frames) for rank in ranks}
    sites = {select_user_frames(positions[rank].frames) for rank in ranks}
    if len(halves) != 1 or len(sites) != 1 or not halves <= _HALVES:
        return None
    (half,), (site,) = halves, sites
    calls = tuple(list_transfer_calls(facts.logs.story.view))
    are_past = all(_is_past(select_user_frames(positions[rank].frames), site) for rank in others)
    if not (are_past and makes_half_first(calls, half)):
        return None
    return CrossedTransfers(ranks, others, half, calls)


def _is_past(site: Sequence[Frame], other: Sequence[Frame]) -> bool:
    """Tell whether one site is further on in the function in which two sites part."""
    for ours, theirs in zip(reversed(site), reversed(other), strict=False):
        if (ours.file, ours.function) != (theirs.file, theirs.function):
            return False
        if ours.line != theirs.line:
            return ours.line > theirs.line > 0
    return False
