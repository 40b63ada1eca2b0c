"""Explains a suspect that is loading data, itself or in a worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.processes.activity import measure_activity
from whystuck.diagnose.algorithms.processes.locks import find_parked
from whystuck.diagnose.algorithms.stacks.frames import find_user_frame, is_in, is_user_frame
from whystuck.diagnose.algorithms.stacks.loading import find_lock_taken, is_in_dataset
from whystuck.diagnose.algorithms.stacks.positions import Doing
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.suspicion import Suspicion
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.live import StackSample
from whystuck.evidence.ops.collectives import Frame

_WORKER_LOOP = "torch/utils/data/_utils/worker.py"
_LOADER = "torch/utils/data/dataloader.py"
_FETCH = "torch/utils/data/_utils/fetch.py"


def explain_stopped_worker(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a main process that waits for a worker which the kernel holds stopped."""
    position = facts.stacks.positions.get(rank)
    if position is None or not any(is_in(frame, _LOADER) for frame in position.frames):
        return None
    stopped = facts.processes.find_stopped_workers(rank)
    if not stopped:
        return None
    pids = sorted(stopped)
    artifact = stopped[pids[0]].artifact
    samples = facts.stacks.worker_samples.get(rank, {}).get(str(pids[0]), ())
    main = next((one.main for one in reversed(samples) if one.main and one.main.frames), None)
    who = f"worker {pids[0]} is" if len(pids) == 1 else f"workers {', '.join(map(str, pids))} are"
    return Suspicion(
        rank,
        codes.PROCESS_STOPPED,
        Confidence.CERTAIN,
        f"waits for data: its {who} stopped (state {stopped[pids[0]].state}) and does not run at "
        "all",
        main.frames if main and any(is_in(f, _FETCH) for f in main.frames) else position.frames,
        because=(
            Citation(f"every look at worker {pids[0]} of rank {rank} shows state T", artifact),
        ),
        details={"state": stopped[pids[0]].state, "worker_pid": pids[0], "worker_pids": pids},
    )


def explain_worker(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a main process that waits for a worker of its data loader."""
    position = facts.stacks.positions.get(rank)
    if position is None or position.doing is not Doing.INPUT_WORKER:
        return None
    busy = [
        samples
        for samples in facts.stacks.worker_samples.get(rank, {}).values()
        if _is_fetching(samples)
    ]
    if not busy:
        return None
    samples = max(busy, key=lambda group: len(group[-1].main.frames) if group[-1].main else 0)
    main = samples[-1].main
    frames = main.frames if main else ()
    parked = find_parked(samples, facts.evidence.sources)
    mine = facts.processes.worker_looks.get(rank, {}).get(samples[-1].pid, ())
    share = measure_activity(mine, samples).cpu_share
    what = "stays in one function"
    details: dict[str, Any] = {"worker_pid": samples[-1].pid}
    if any(item.thread.is_main for item in parked):
        what = "waits for a lock that was held when the worker was forked"
        details["lock"] = next(item.lock for item in parked if item.thread.is_main)
    elif share is not None and share >= facts.policy.idle_cpu_share:
        what = "computes in one function without end"
    elif lock := find_lock_taken(frames):
        what = "waits for a lock"
        details["lock"] = lock
    user = find_user_frame(frames)
    name = f" ({user.function})" if user else ""
    return Suspicion(
        rank,
        codes.INPUT_WORKER_STUCK,
        Confidence.CERTAIN if len(samples) > 1 else Confidence.LIKELY,
        f"waits for data: its worker {samples[-1].pid} {what}{name}",
        frames,
        because=(Citation(f"worker of rank {rank}, all samples", samples[-1].artifact),),
        details=details,
        measures={} if share is None else {"worker_cpu_share": round(share, 2)},
    )


def _is_fetching(samples: Sequence[StackSample]) -> bool:
    """Tell whether a worker is in one user function of the dataset in all its samples."""
    functions = set()
    for sample in samples:
        frames = sample.main.frames if sample.main else ()
        if not is_in_dataset(frames):
            return False
        functions.add(tuple(_functions(frames)))
    # A loop in the user's code may call helpers; one shared outer function is enough.
    shared = set.intersection(*(set(functions_of) for functions_of in functions))
    return bool(shared)


def _functions(frames: Sequence[Frame]) -> Iterator[tuple[str, str]]:
    for frame in frames:
        if is_in(frame, _FETCH, _WORKER_LOOP):
            return
        if is_user_frame(frame):
            yield frame.file, frame.function


def explain_input(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a main process that is inside its dataset."""
    position = facts.stacks.positions.get(rank)
    if position is None or position.doing is not Doing.INPUT_MAIN:
        return None
    frames = position.frames
    inside = list(_functions(frames))
    if not inside:
        return None
    activity = facts.processes.activities.get(rank)
    is_long = activity is not None and activity.asleep_s >= facts.policy.snapshot_stall_s
    return Suspicion(
        rank,
        codes.INPUT_STALLED,
        Confidence.LIKELY if facts.movement.has_rhythm(rank) or is_long else Confidence.POSSIBLE,
        f"is loading data in the main process ({inside[0][1]}) and does not come back",
        frames,
        because=(facts.stacks.cite(rank, f"rank {rank} is below the fetch of its data loader"),),
        details={"function": inside[-1][1]},
    )
