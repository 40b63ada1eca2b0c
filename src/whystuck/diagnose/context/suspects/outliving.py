"""Explains a rank that does not end, although its peers have."""

from __future__ import annotations

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import describe_place, select_user_frames
from whystuck.diagnose.algorithms.stacks.positions import Doing
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.suspicion import (
    Suspicion,
    get_activity,
    get_frames,
    is_moving,
    works_by_child,
)
from whystuck.evidence.finding import Citation, Confidence

_PLACES = {Doing.EXITING, Doing.USER}


def explain_outliving(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank that rests in code of its own while all others have ended well.

    The launcher waits for it, and nobody else does. One that still moves has work to do.
    """
    ends, incident = facts.exits.by_rank, facts.evidence.incident
    others = facts.ranks.all - {rank}
    if incident.kind != "stall" or rank in ends or not others:
        return None
    if any(other not in ends or ends[other].code != 0 for other in others):
        return None
    position, activity = facts.stacks.positions.get(rank), get_activity(facts, rank)
    here = select_user_frames(get_frames(facts, rank))
    if position is None or position.doing not in _PLACES or not here:
        return None
    is_busy = is_moving(facts, activity) or works_by_child(facts, rank)
    if is_busy or activity.cpu_share is None:
        return None
    one = min(others)
    return Suspicion(
        rank,
        codes.RANK_NEVER_JOINED,
        Confidence.LIKELY,
        f"is blocked in {describe_place(here[0])} and does not end, as all others have",
        position.frames,
        because=(
            facts.stacks.cite(rank, f"main thread of rank {rank}, last sample"),
            Citation(f"rank {one} ended with exit code 0", ends[one].artifact),
        ),
        details={"state": "blocked"},
        measures={"cpu_share": round(activity.cpu_share, 2)},
    )
