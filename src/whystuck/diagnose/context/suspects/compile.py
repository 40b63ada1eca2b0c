"""Explains a suspect that is in a compiler: it works, it stands still, or it compiles alone."""

from __future__ import annotations

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.processes.activity import Activity
from whystuck.diagnose.algorithms.stacks.frames import find_user_frame
from whystuck.diagnose.algorithms.stacks.positions import is_compiling
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.place import make_busy
from whystuck.diagnose.context.suspects.suspicion import (
    Suspicion,
    get_activity,
    get_frames,
    is_moving,
)
from whystuck.evidence.finding import Citation, Confidence


def explain_compiling(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank in a compiler.

    One in which nothing moves, its children included, is stuck. One that works is not, unless
    training had found its rhythm and the rank compiles while most others have nothing to compile.
    """
    if not is_compiling(get_frames(facts, rank)):
        return None
    activity = get_activity(facts, rank)
    if _is_still(facts, activity):
        return _make_divergent(facts, rank, "blocked", _judge_blocked(activity))
    is_missed = rank >= 0 and bool(facts.exceptions.timed_out_by_log - {rank})
    is_missed = is_missed and rank not in facts.exceptions.timed_out_by_log
    if facts.stacks.are_pasted and len(facts.stacks.positions) == 1 and not is_missed:
        # Somebody who shows one stack has seen the job stand there.
        return _make_divergent(facts, rank, "unknown", Confidence.POSSIBLE)
    has_begun = facts.movement.has_rhythm(rank) or _is_waited_for(facts, rank)
    is_alone = has_begun and 2 * len(_find_compiling(facts)) <= len(facts.ranks.all)
    if not is_alone:
        return make_busy(facts, rank, "is compiling")
    gap = facts.policy.long_gap_factor * facts.evidence.incident.longest_gap_s
    is_long = 0 < gap < facts.evidence.incident.stalled_s
    is_long = is_long or bool(facts.exceptions.timed_out_by_log - {rank})
    sure = Confidence.LIKELY if is_long else Confidence.POSSIBLE
    return _make_divergent(facts, rank, "running", sure)


def _is_waited_for(facts: Facts, rank: int) -> bool:
    """Tell whether pasted stacks or logs show that others wait, past what this rank compiles."""
    return facts.stacks.are_pasted and bool(facts.waits.waiting - {rank})


def _is_still(facts: Facts, activity: Activity) -> bool:
    """Tell whether nothing moves: the process, its children, and its frames."""
    share = activity.children_cpu_share
    children_rest = share is not None and share < facts.policy.idle_cpu_share
    return activity.samples > 1 and children_rest and not is_moving(facts, activity)


def _judge_blocked(activity: Activity) -> Confidence:
    return Confidence.LIKELY if activity.cpu_share is not None else Confidence.POSSIBLE


def _find_compiling(facts: Facts) -> list[int]:
    return [rank for rank, at in facts.stacks.positions.items() if is_compiling(at.frames)]


def _make_divergent(facts: Facts, rank: int, state: str, sure: Confidence) -> Suspicion:
    frames, activity = get_frames(facts, rank), get_activity(facts, rank)
    user = find_user_frame(frames)
    where = f" below {user.function}" if user else ""
    text = {
        "blocked": f"is in the compiler{where} and nothing in it moves",
        "running": f"is compiling{where}, which most other ranks are not",
        "unknown": f"is compiling{where}; whether it moves, and what the others do, is not known",
    }[state]
    own, children = activity.cpu_share or 0.0, activity.children_cpu_share or 0.0
    used = f"rank {rank} uses {own:.0%} of a core and its child processes {children:.0%}"
    cites = (Citation(used, activity.artifact),) if activity.cpu_share is not None else ()
    return Suspicion(
        rank,
        codes.COMPILE_DIVERGENCE,
        sure,
        text,
        frames,
        because=(
            facts.stacks.cite(rank, f"main thread of rank {rank} is in {frames[0].function}"),
            *cites,
        ),
        details={"state": state, "compiling": [one for one in _find_compiling(facts) if one >= 0]},
        measures={"cpu_share": round(own, 2), "children_cpu_share": round(children, 2)}
        if cites
        else {},
    )
