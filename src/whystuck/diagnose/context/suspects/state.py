"""Explains a suspect by a state that needs no comparison with its peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_cascade
from whystuck.diagnose.algorithms.failures.departures import describe_departure
from whystuck.diagnose.algorithms.processes.locks import (
    Parked,
    find_crossing,
    find_parked,
    may_be_held_elsewhere,
)
from whystuck.diagnose.algorithms.stacks.frames import (
    describe_place,
    find_user_frame,
    is_in,
    is_user_frame,
)
from whystuck.diagnose.algorithms.stacks.positions import Doing
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.suspicion import Suspicion, get_activity, get_frames
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.live import Beat, StackSample, ThreadStack
from whystuck.evidence.ranks import name_ranks


def explain_stopped(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a process that the kernel holds stopped."""
    activity = get_activity(facts, rank)
    if not activity.is_stopped:
        return None
    return Suspicion(
        rank,
        codes.PROCESS_STOPPED,
        Confidence.CERTAIN,
        f"is stopped (state {activity.state}) and does not run at all",
        get_frames(facts, rank),
        because=(Citation(f"every look at rank {rank} shows state T", activity.artifact),),
        details={"state": activity.state},
    )


def explain_left(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank that ended with exit code 0."""
    ended = facts.exits.by_rank.get(rank)
    if ended is None or ended.code != 0 or rank in facts.exceptions.by_rank:
        return None
    departure = facts.exits.departures.get(rank)
    because = [Citation(f"rank {rank} ended with exit code 0", ended.artifact)]
    details: dict[str, Any] = {"exit_code": 0}
    if departure is not None:
        because.append(Citation(f"rank {rank} called {departure.call}", departure.artifact))
        details["call"] = departure.call
    return Suspicion(
        rank,
        codes.LEFT_EARLY,
        Confidence.CERTAIN,
        "ended with exit code 0" + describe_departure(departure),
        departure.frames if departure else facts.ops.find_last_site(rank),
        because=tuple(because),
        details=details,
    )


def explain_gil(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank whose GIL one thread keeps."""
    samples = facts.stacks.samples_by_rank.get(rank, [])
    beat = facts.processes.beats_by_rank.get(rank)
    owners = [_find_owner(sample) for sample in samples]
    is_owned = bool(owners) and all(owner is not None for owner in owners)
    is_same = is_owned and len({_place(owner) for owner in owners if owner}) == 1
    is_silent = beat is not None and (beat.answered_without_gil or beat.stale)
    activity = get_activity(facts, rank)
    idle = (activity.cpu_share or 0.0) < facts.policy.idle_cpu_share
    proven = (
        beat is not None
        and is_same
        and not activity.is_stopped
        # Evidence of older versions, in which a server of torch's was asked beside the probe.
        and (beat.answered_without_gil or _has_waited_for_gil(facts, beat, len(samples)))
    )
    if not proven and not (is_same and len(samples) > 1 and (is_silent or idle)):
        return None
    owner = owners[-1]
    frames = owner.frames if owner else get_frames(facts, rank)
    library = frames[0].file if frames and not is_user_frame(frames[0]) else ""
    because = [facts.stacks.cite(rank, f"one thread of rank {rank} owns the GIL in all samples")]
    if is_silent and beat is not None:
        text = f"the probe of rank {rank} has not run for {beat.age_s:.0f} s"
        because.append(Citation(text, beat.artifact))
    return Suspicion(
        rank,
        codes.GIL_HELD,
        Confidence.CERTAIN if proven else Confidence.LIKELY,
        "runs native code that does not give the GIL back",
        frames,
        because=tuple(because),
        details={"thread": owner.name if owner else "", "library": library},
    )


def _has_waited_for_gil(facts: Facts, beat: Beat, samples: int) -> bool:
    """Return whether the probe, which needs the GIL once a second, got none for long enough."""
    return samples > 1 and beat.stale and beat.age_s > facts.policy.stale_beat_s


def _find_owner(sample: StackSample) -> ThreadStack | None:
    """Find the thread that owns the GIL; one without frames belongs to an interpreter that ends."""
    return next((thread for thread in sample.threads if thread.owns_gil and thread.frames), None)


def _place(thread: ThreadStack) -> tuple[int, str, int]:
    user = find_user_frame(thread.frames)
    return thread.thread_id, user.file if user else "", user.line if user else 0


def explain_exception(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank that raised an exception and does not end."""
    item = facts.exceptions.by_rank.get(rank)
    kind = facts.evidence.incident.kind
    if (
        item is None
        or is_cascade(item)
        or rank in facts.exits.dead
        or kind not in {"stall", "snapshot"}
    ):
        return None
    position = facts.stacks.positions.get(rank)
    is_exiting = position is not None and position.doing is Doing.EXITING
    # A log also holds exceptions that were caught.
    if not item.is_main_thread or (item.source == "log" and not is_exiting):
        return None
    message = item.message.splitlines()[0] if item.message else ""
    text = f"raised {item.type}({message!r:.120}) but its process stays alive"
    now = facts.stacks.find_line(rank)
    details = {"exception": item.type, "message": message}
    if position is not None:
        details["now"] = position.doing.value
    return Suspicion(
        rank,
        codes.EXCEPTION_HANGING,
        Confidence.CERTAIN,
        text,
        item.frames,
        more_frames=(now,) if now else (),
        because=(Citation(f"uncaught {item.type} of rank {rank}", item.artifact),),
        details=details,
    )


def explain_locks(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank with two threads that are parked on locks."""
    samples = facts.stacks.samples_by_rank.get(rank, [])
    parked = find_parked(samples, facts.evidence.sources)
    crossing = find_crossing(parked)
    pair = crossing or _pair_with_main(parked)
    if pair is None:
        return None
    first, second = pair
    if not crossing and first.lock == second.lock:
        return None
    is_named = first.is_named and second.is_named
    # Who holds locks that nothing names is one of those that wait, or another one.
    is_open = not is_named and may_be_held_elsewhere(samples[-1], parked)
    is_seen = crossing and not (first.is_noted or second.is_noted)
    sites = [
        {"thread": item.thread.name, "waits_for": item.lock, "holds": sorted(item.held)}
        for item in (first, second)
    ]
    return Suspicion(
        rank,
        codes.LOCK_DEADLOCK,
        Confidence.CERTAIN if is_seen else (Confidence.POSSIBLE if is_open else Confidence.LIKELY),
        f"has two threads that wait for each other's lock ({first.lock}, {second.lock})",
        (first.frame,),
        more_frames=(second.frame,),
        because=(facts.stacks.cite(rank, f"two parked threads of rank {rank}"),),
        details={"threads": sites},
    )


def _pair_with_main(parked: Sequence[Parked]) -> tuple[Parked, Parked] | None:
    """Pair the main thread with another one that is parked, where both are."""
    main = next((item for item in parked if item.thread.is_main), None)
    other = next((item for item in parked if item is not main), None)
    return (main, other) if main is not None and other is not None else None


# What waits until the file of a lock is gone, or given back: torch's extensions, the caches of
# compilers and data sets.
_LOCK_FILES = ("torch/utils/file_baton.py", "filelock/", "fasteners/", "portalocker/")
_LOCK_CALLS = {"flock", "lockf"}
_NEAR = 4


def explain_lock_file(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank that waits for the file of a lock which another process holds, or left."""
    frames = get_frames(facts, rank)[:_NEAR]
    inner = next(
        (one for one in frames if is_in(one, *_LOCK_FILES) or one.function in _LOCK_CALLS), None
    )
    if inner is None or any(is_user_frame(frame) for frame in frames[: frames.index(inner)]):
        return None
    outer = next((one for one in get_frames(facts, rank) if not is_in(one, *_LOCK_FILES)), inner)
    return Suspicion(
        rank,
        codes.LOCK_DEADLOCK,
        Confidence.LIKELY,
        "waits for a lock file that another process holds or left behind "
        f"({describe_place(inner)})",
        get_frames(facts, rank),
        because=(facts.stacks.cite(rank, f"rank {rank} is in {describe_place(inner)}"),),
        details={"lock_file": True, "called_by": outer.function},
    )


def explain_teardown(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank in destroy_process_group."""
    position = facts.stacks.positions.get(rank)
    if position is None or position.doing is not Doing.TEARDOWN:
        return None
    return Suspicion(
        rank,
        codes.LEFT_EARLY,
        # Without a record, the others may as well have made a call more.
        Confidence.CERTAIN if facts.ops.recorded_ranks else Confidence.LIKELY,
        "is in destroy_process_group while others still wait for it",
        position.frames,
        more_frames=facts.ops.find_last_site(rank)[:1],
        because=(facts.stacks.cite(rank, f"rank {rank} is in destroy_process_group"),),
    )


def explain_device(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank whose oldest op on the device is over for its peers."""
    wait = facts.waits.device_stalls.get(rank)
    if wait is None:
        return None
    op = facts.ops.name_op(wait.row)
    frames = get_frames(facts, rank) or facts.ops.get_site(wait.row)
    details = {"group": wait.group.label, "sequence": wait.seq, "op": op}
    if rank in facts.waits.not_started:
        peers = sorted(wait.group.members - set(facts.waits.not_started))
        text = f"has a device that does not start {op}, which its peers started"
        fact, is_all = f"that is not over, and has not begun; it has on {name_ranks(peers)}", False
    else:
        text = f"has a device that does not finish {op}, which its peers completed"
        fact = f"that is not over; {name_ranks(sorted(wait.finished))} completed it"
        is_all = wait.finished | {rank} >= wait.group.members
    cite = f"{op} {wait.seq} of group {wait.group.label} is the oldest op of rank {rank} {fact}"
    return Suspicion(
        rank,
        codes.DEVICE_STALLED,
        Confidence.CERTAIN if is_all else Confidence.LIKELY,
        text,
        frames,
        because=(facts.ops.cite_row(wait.row, cite),),
        details=details,
    )
