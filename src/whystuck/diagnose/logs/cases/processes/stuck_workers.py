"""H112 by the stack of a data loader's worker alone, which waits for a mutex in its dataset.

A forked process has one thread. Who held a mutex at the time of the fork is not in it, and nobody
gives it back. Where the stack of the rank is shown too, that is judged with those of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import describe_place, find_user_frame, make_places
from whystuck.diagnose.algorithms.stacks.loading import find_lock_taken, is_in_dataset
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.live import StackSample


def make_stuck_workers(view: LogView) -> Iterator[Case]:
    """Make the case of a worker that waits for a lock at each look, whose rank is not shown."""
    shown = {one.rank for one in view.evidence.stacks if not one.worker}
    looks: dict[int, list[StackSample]] = {}
    for one in view.evidence.stacks:
        if one.worker and one.row is not None and one.rank not in shown:
            looks.setdefault(one.pid, []).append(one)
    stuck = {pid: samples for pid, samples in looks.items() if all(map(_is_parked, samples))}
    if not stuck:
        return
    ranks = {one.rank for samples in stuck.values() for one in samples}
    known = tuple(sorted(rank for rank in ranks if rank >= 0))
    last = [samples[-1] for samples in stuck.values()]
    first = last[0]
    frames = first.main.frames if first.main is not None else ()
    user, lock = find_user_frame(frames), find_lock_taken(frames)
    place = f" in {describe_place(user)}" if user is not None else ""
    is_alone = all(len(one.threads) == 1 for one in last)
    owner = f"rank {known[0]}" if len(known) == len(ranks) == 1 else "a rank"
    yield Case(
        code=codes.INPUT_WORKER_STUCK,
        summary=f"a worker of the data loader of {owner} waits for a lock{place}, and delivers no "
        "batch: a fork copies locks as they are held",
        tier=PARTED - 1,
        ranks=known if len(known) == len(ranks) == 1 else (),
        where=tuple(make_places(first.rank, frames)),
        # Another thread of it may hold the lock, and give it back.
        confidence=Confidence.LIKELY if is_alone else Confidence.POSSIBLE,
        details={"worker_pid": first.pid, "lock": lock},
        cites=tuple(_cite(last)),
    )


def _is_parked(sample: StackSample) -> bool:
    frames = sample.main.frames if sample.main is not None else ()
    return is_in_dataset(frames) and bool(find_lock_taken(frames))


def _cite(samples: Sequence[StackSample]) -> list[Citation]:
    return [
        Citation(f"worker {one.pid} waits for a lock", one.artifact, one.row) for one in samples[:3]
    ]
