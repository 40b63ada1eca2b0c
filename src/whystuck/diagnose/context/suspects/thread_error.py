"""Explains a rank of which a thread has ended with an error that others wait for."""

from __future__ import annotations

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_cascade
from whystuck.diagnose.algorithms.stacks.frames import (
    describe_place,
    find_user_frame,
    select_user_frames,
)
from whystuck.diagnose.algorithms.stacks.positions import Doing, is_waiting_for_threads
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.suspicion import Suspicion, get_activity, get_frames
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.live import PythonException

_NS_PER_S = 1e9


def explain_thread_error(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank whose main thread waits for other threads, of which one has failed."""
    position, frames = facts.stacks.positions.get(rank), get_frames(facts, rank)
    error = _find_error(facts, rank)
    if error is None or position is None or position.doing is not Doing.USER:
        return None
    is_busy = (get_activity(facts, rank).cpu_share or 0.0) >= facts.policy.idle_cpu_share
    if is_busy or not is_waiting_for_threads(position):
        return None
    message = error.message.splitlines()[0] if error.message else ""
    text = f"waits for its threads, and thread {error.thread} ended with {error.type}"
    now = find_user_frame(frames)
    if now is not None:
        text = f"waits in {describe_place(now)} for its threads, and thread {error.thread}"
        text += f" ended with {error.type}({message!r:.120})"
    return Suspicion(
        rank,
        codes.EXCEPTION_HANGING,
        Confidence.LIKELY,
        text,
        error.frames,
        more_frames=(now,) if now else (),
        because=(
            Citation(f"uncaught {error.type} of thread {error.thread}", error.artifact),
            facts.stacks.cite(rank, f"main thread of rank {rank}, last sample"),
        ),
        details={
            "exception": error.type,
            "message": message,
            "now": position.doing.value,
            "thread": error.thread,
        },
    )


def explain_dead_caller(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank whose thread failed in the function from which others call what they wait in.

    The main thread goes on to what comes next, and may then wait for the others in turn.
    """
    error = _find_error(facts, rank)
    if error is None or rank in facts.exits.dead:
        return None
    failed_in = {(frame.file, frame.function) for frame in select_user_frames(error.frames)}
    wait = next(
        (
            one
            for one in facts.waits.pending
            if rank in one.missing
            and any(
                (frame.file, frame.function) in failed_in
                for frame in select_user_frames(facts.ops.get_wait_site(one))
            )
        ),
        None,
    )
    if wait is None:
        return None
    now = find_user_frame(get_frames(facts, rank))
    message = error.message.splitlines()[0] if error.message else ""
    return Suspicion(
        rank,
        codes.EXCEPTION_HANGING,
        Confidence.LIKELY,
        f"makes no {facts.ops.name_wait(wait)} any more: its thread {error.thread} ended with "
        f"{error.type}({message!r:.120})",
        error.frames,
        more_frames=(now,) if now else (),
        because=(Citation(f"uncaught {error.type} of thread {error.thread}", error.artifact),),
        details={"exception": error.type, "message": message, "thread": error.thread},
    )


def _find_error(facts: Facts, rank: int) -> PythonException | None:
    """Return the first error of a thread that may be why the rank waits now."""
    incident, policy = facts.evidence.incident, facts.policy
    if incident.kind not in {"stall", "snapshot"} or not incident.opened_ns:
        return None
    begin_s = incident.opened_ns / _NS_PER_S - incident.stalled_s - policy.thread_error_s
    return next(
        (
            one
            for one in facts.exceptions.in_threads.get(rank, ())
            if one.time_ns / _NS_PER_S >= begin_s and not is_cascade(one)
        ),
        None,
    )
