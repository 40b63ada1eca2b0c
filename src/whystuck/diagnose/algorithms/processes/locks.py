"""Threads that are parked on locks, and whether two of them hold what the other wants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from whystuck.diagnose.algorithms.source.blocks import find_held_locks, find_lock
from whystuck.diagnose.algorithms.stacks.frames import find_user_frame, is_in, is_user_frame
from whystuck.evidence.live import StackSample, ThreadStack
from whystuck.evidence.ops.collectives import Frame

# Library frames that a blocked lock, condition or semaphore may show above the user's line.
_LOCK_FILES = ("threading.py", "multiprocessing/synchronize.py")
_LOCK_FUNCTIONS = {"acquire", "__enter__", "wait"}


@dataclass(frozen=True)
class Parked:
    """A thread that waits for a lock: the lock as the source names it, and what it holds."""

    thread: ThreadStack
    frame: Frame
    lock: str
    held: Mapping[str, Frame]


def find_parked(samples: Iterable[StackSample], sources: Mapping[str, str]) -> list[Parked]:
    """Find threads that are at one lock in all samples of a process.

    Args:
        samples: Samples of one process, oldest first.
        sources: Text of the user's files by path.

    Returns:
        The parked threads of the last sample.
    """
    looks = list(samples)
    if not looks:
        return []
    lines_by_thread: dict[int, set[tuple[str, int] | None]] = {}
    for look in looks:
        for thread in look.threads:
            user = find_user_frame(thread.frames)
            place = (user.file, user.line) if user else None
            lines_by_thread.setdefault(thread.thread_id, set()).add(place)
    return [
        parked
        for thread in looks[-1].threads
        if len(lines_by_thread[thread.thread_id]) == 1
        and (parked := _read_parked(thread, sources)) is not None
    ]


def _read_parked(thread: ThreadStack, sources: Mapping[str, str]) -> Parked | None:
    frame = find_user_frame(thread.frames)
    if frame is None:
        return None
    above = thread.frames[: thread.frames.index(frame)]
    if any(
        not is_in(item, *_LOCK_FILES) or item.function.rpartition(".")[2] not in _LOCK_FUNCTIONS
        for item in above
    ):
        return None
    lock = find_lock(sources.get(frame.file, ""), frame.line)
    if not lock:
        return None
    held: dict[str, Frame] = {}
    for outer in thread.frames:
        if is_user_frame(outer):
            for name, line in find_held_locks(sources.get(outer.file, ""), outer.line).items():
                if line != frame.line or outer is not frame:
                    held.setdefault(name, Frame(outer.function, outer.file, line))
    return Parked(thread, frame, lock, held)


def find_crossing(parked: Iterable[Parked]) -> tuple[Parked, Parked] | None:
    """Find two threads of which each holds the lock that the other wants."""
    for first, second in combinations(parked, 2):
        if first.lock in second.held and second.lock in first.held and first.lock != second.lock:
            return first, second
    return None
