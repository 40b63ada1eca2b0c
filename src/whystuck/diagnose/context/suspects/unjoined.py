"""Ranks that set up a group in vain: all ranks of the job have to, and some wait elsewhere.

A call such as ``new_group`` is no op: no record has it, and only stacks show who is in it.
"""

from __future__ import annotations

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.waits import Wait
from whystuck.diagnose.algorithms.stacks.frames import select_user_frames
from whystuck.diagnose.algorithms.stacks.positions import Doing, name_call
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.group_calls import (
    SETS_UP,
    find_other_order,
    find_uneven_counts,
)
from whystuck.diagnose.context.suspects.stack_sides import Parting, Side
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ranks import name_ranks

# With it, members alone make the call.
_MEMBERS_ONLY = "use_local_synchronization"


def find_unjoined(facts: Facts) -> Parting | None:
    """Find ranks that set up a group and wait for others, which are elsewhere or make another one.

    Args:
        facts: The evidence, with a record of ops.

    Returns:
        None where anybody may yet come, or nothing tells groups that ranks set up apart.
    """
    joining = _list_joining(facts)
    others = {wait.rank: wait for wait in facts.waits.pending if wait.rank not in joining}
    if not joining or facts.ranks.all != set(joining) | set(others):
        return None
    if _MEMBERS_ONLY in "".join(facts.evidence.sources.values()):
        return None
    if not others:
        return _judge_all(facts, joining) if facts.movement.is_stalled else None
    if not all(wait.targets & set(joining) for wait in others.values()):
        return None
    parting = find_other_order(facts, joining | _list_waiting(facts, others))
    if parting is not None or len({(side.op, side.site) for side in joining.values()}) != 1:
        return parting
    side = next(iter(joining.values()))
    callers = Side(tuple(sorted(joining)), side.op, side.site)
    return _accuse(facts, callers, others)


def _judge_all(facts: Facts, joining: dict[int, Side]) -> Parting | None:
    return find_other_order(facts, joining) or find_uneven_counts(facts, joining)


def _list_waiting(facts: Facts, others: dict[int, Wait]) -> dict[int, Side]:
    """Return what ranks wait in that set up no group."""
    return {
        rank: Side(
            (rank,), facts.ops.name_wait(wait), select_user_frames(facts.ops.get_wait_site(wait))
        )
        for rank, wait in others.items()
    }


def _list_joining(facts: Facts) -> dict[int, Side]:
    """Return the ranks that are in a call which sets up a group behind the first one."""
    found = {}
    for rank, position in facts.stacks.positions.items():
        op = name_call(position.frames)
        if position.doing is Doing.JOINING and op in SETS_UP and rank not in facts.exits.dead:
            found[rank] = Side((rank,), op, select_user_frames(position.frames))
    return found


def _accuse(facts: Facts, callers: Side, others: dict[int, Wait]) -> Parting:
    """Name those that did not make the call; where they are most, the call may be too many."""
    ranks = tuple(sorted(others))
    behind = _list_behind(facts, callers, ranks)
    few = len(facts.ranks.all) > 2 * len(behind) > 0
    waiting = _list_waiting(facts, others)
    sides = list(waiting.values())
    who = name_ranks(behind) if behind else f"one of {name_ranks(ranks)}, or several,"
    text = (
        f"{who} did not call {callers.op}, which all ranks of the job have to call, members of the "
        "group or not"
    )
    return Parting(
        codes.SKIPPED_COLLECTIVE,
        Confidence.LIKELY if few else Confidence.POSSIBLE,
        text,
        tuple(sorted((callers, *sides), key=lambda one: (len(one.ranks), one.ranks))),
        behind,
        {rank: (*callers.site[:1], *waiting[rank].site) for rank in behind}
        or {callers.ranks[0]: callers.site},
    )


def _list_behind(facts: Facts, callers: Side, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ranks that made fewer such calls, by the counts of their probes.

    Who is no member of the group makes the call and goes on. Where counts are not known, only one
    rank alone must be the one that lacks.
    """
    calls = {beat.rank: beat.group_calls for beat in facts.evidence.beats if beat.group_calls >= 0}
    made = max((calls.get(rank, 0) for rank in callers.ranks), default=0)
    behind = tuple(rank for rank in ranks if calls.get(rank, made) < made)
    if set(ranks) <= set(calls) and behind:
        return behind
    return ranks if len(ranks) == 1 else ()
