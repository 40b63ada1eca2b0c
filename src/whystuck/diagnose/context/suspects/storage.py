"""Explains a suspect by a file system that does not answer it."""

from __future__ import annotations

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.processes.storage import Silence, find_silence
from whystuck.diagnose.algorithms.stacks.frames import is_in
from whystuck.diagnose.algorithms.stacks.positions import Doing
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.suspicion import (
    Suspicion,
    get_activity,
    get_frames,
    is_moving,
)
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.ops.collectives import Frame

_MIN_SPAN_S = 1.0


def explain_storage(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank, or the data-loader worker it waits for, that is kept in a call on a file."""
    silence = find_silence(facts.processes.looks_by_rank.get(rank, ()))
    if silence is not None and not silence.wait.is_main:
        # Another thread's wait matters when the main thread stands still: it waits for that.
        is_running = is_moving(facts, get_activity(facts, rank))
        silence = None if is_running else silence
    frames = get_frames(facts, rank)
    if silence is None:
        position = facts.stacks.positions.get(rank)
        if position is not None and position.doing is not Doing.INPUT_WORKER:
            return None
        silence = _find_in_workers(facts, rank)
        if silence is None:
            return None
        frames = _find_worker_frames(facts, rank, silence.pid) or frames
    return _make(rank, silence, frames, facts)


def _find_in_workers(facts: Facts, rank: int) -> Silence | None:
    for pid, looks in facts.processes.worker_looks.get(rank, {}).items():
        frames = _find_worker_frames(facts, rank, pid)
        silence = find_silence(looks)
        # Other children of a rank than loader workers wait for what they like.
        if silence is not None and silence.wait.is_main and (not frames or _is_loader(frames)):
            return silence
    return None


def _is_loader(frames: tuple[Frame, ...]) -> bool:
    return any(is_in(frame, "torch/utils/data/_utils/worker.py") for frame in frames)


def _find_worker_frames(facts: Facts, rank: int, pid: int) -> tuple[Frame, ...]:
    samples = facts.stacks.worker_samples.get(rank, {}).get(str(pid), ())
    main = samples[-1].main if samples else None
    return main.frames if main is not None else ()


def _make(rank: int, silence: Silence, frames: tuple[Frame, ...], facts: Facts) -> Suspicion | None:
    wait = silence.wait
    where = f" of {wait.path}" if wait.path else ""
    place = f" on {wait.mount} ({wait.fs_type})" if wait.mount else ""
    call = f"{wait.call or 'an operation'}{where}"
    who = "" if wait.is_main else f"thread {wait.thread_name or wait.thread_id} "
    if silence.pid not in {look.pid for look in facts.processes.looks_by_rank.get(rank, ())}:
        who = f"worker {silence.pid} "
    text = (
        f"is kept in {call}{place}, which does not answer"
        if not who
        else f"waits for its {who}in {call}{place}, which does not answer"
    )
    told = (
        f"the thread did not run in {silence.looks} looks over {silence.span_s:.1f} s: state "
        f"{wait.state}{f', in {wait.wchan}' if wait.wchan else ''}"
    )
    return Suspicion(
        rank,
        codes.STORAGE_STALLED,
        _judge(silence),
        text,
        frames,
        because=(Citation(told, silence.artifact),),
        details={
            "mount": wait.mount,
            "fs_type": wait.fs_type,
            "path": wait.path,
            "state": wait.state,
            "call": wait.call,
            "wchan": wait.wchan,
            "mount_source": wait.mount_source,
        },
        measures={"watched_s": round(silence.span_s, 1)},
    )


def _judge(silence: Silence) -> Confidence:
    if not silence.is_placed:
        return Confidence.POSSIBLE
    sure = silence.wait.is_remote and silence.wait.is_main and silence.span_s >= _MIN_SPAN_S
    return Confidence.CERTAIN if sure else Confidence.LIKELY
