"""Threads that are parked on locks, and whether two of them hold what the other wants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from whystuck.diagnose.algorithms.processes.noted_locks import is_same_lock, read_noted_locks
from whystuck.diagnose.algorithms.source.blocks import find_held_locks, find_lock
from whystuck.diagnose.algorithms.stacks.frames import find_user_frame, is_in, is_user_frame
from whystuck.evidence.live import StackSample, ThreadStack
from whystuck.evidence.ops.collectives import Frame

# Library frames that a blocked lock, condition or semaphore may show above the user's line.
_LOCK_FILES = ("threading.py", "multiprocessing/synchronize.py")
_LOCK_FUNCTIONS = {"acquire", "__enter__", "wait"}
# A thread in one of these waits for a lock, whatever the source says; `wait` is a condition's.
_TAKES = {"acquire", "__enter__"}


@dataclass(frozen=True)
class Parked:
    """A thread that waits for a lock: the lock as the source names it, and what it holds.

    Where there is no source, comments at the frames name both (``is_noted``), or nothing does: the
    lock is then named by the place where it is taken (``is_named`` is false).
    """

    thread: ThreadStack
    frame: Frame
    lock: str
    held: Mapping[str, Frame]
    is_named: bool = True
    is_noted: bool = False


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
        return _read_unnamed(thread, frame)
    held: dict[str, Frame] = {}
    for outer in thread.frames:
        if is_user_frame(outer):
            for name, line in find_held_locks(sources.get(outer.file, ""), outer.line).items():
                if line != frame.line or outer is not frame:
                    held.setdefault(name, Frame(outer.function, outer.file, line))
    return Parked(thread, frame, lock, held)


def _read_unnamed(thread: ThreadStack, frame: Frame) -> Parked | None:
    """Read a thread of which no source tells what it waits for."""
    inner = thread.frames.index(frame)
    noted = read_noted_locks(thread, inner)
    if noted.wanted:
        return Parked(thread, frame, noted.wanted, dict.fromkeys(noted.held, frame), is_noted=True)
    if not inner or thread.frames[0].function.rpartition(".")[2] not in _TAKES:
        return None
    place = f"{frame.file.rpartition('/')[2]}:{frame.line}"
    return Parked(thread, frame, place, {}, is_named=False)


def find_crossing(parked: Iterable[Parked]) -> tuple[Parked, Parked] | None:
    """Find two threads of which each holds the lock that the other wants."""
    for first, second in combinations(parked, 2):
        if first.lock == second.lock and not first.is_noted:
            continue
        if _holds(second, first.lock) and _holds(first, second.lock):
            return first, second
    return None


def _holds(parked: Parked, lock: str) -> bool:
    if parked.is_noted:
        return any(is_same_lock(name, lock) for name in parked.held)
    return lock in parked.held


def may_be_held_elsewhere(sample: StackSample, parked: Iterable[Parked]) -> bool:
    """Tell whether another thread in code of the user may hold what these threads wait for."""
    waiting = {id(item.thread) for item in parked}
    return any(
        id(thread) not in waiting and find_user_frame(thread.frames) is not None
        for thread in sample.threads
    )
