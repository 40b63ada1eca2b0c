"""Work in parts: by copies of this process, by somebody's executor, or here."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from whystuck.read.budget import Deadline, measure_cpu, wait_for

A = TypeVar("A")
T = TypeVar("T")
# How much is done, and how much there is.
Progress = Callable[[int, int], None]


def can_fork() -> bool:
    """Return whether this process may be copied: another thread could hold a lock."""
    return "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1


@contextmanager
def forked(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Copy this process; the garbage collector touches nothing that the copies share with it."""
    gc.freeze()
    try:
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(workers, context, gc.disable) as pool:
            yield pool
    finally:
        gc.unfreeze()


def map_parts(
    executor: Executor | None,
    work: Callable[[A], T],
    parts: Sequence[tuple[A, int]],
    progress: Progress,
    deadline: Deadline,
) -> list[T | None]:
    """Do some work on each part.

    Args:
        executor: Where; in this process, one after the other, when left out.
        work: The work.
        parts: What to work on, and how much each counts.
        progress: Called with how much is done, and with all.
        deadline: When nothing more is begun.

    Returns:
        What came of each; None for those that were not begun.
    """
    if executor is None:
        return list(_map_here(work, parts, progress, deadline))
    futures = {executor.submit(measure_cpu, work, part): count for part, count in parts}
    wait_for(futures, progress, deadline)
    return [None if future.cancelled() else future.result()[0] for future in futures]


def _map_here(
    work: Callable[[A], T],
    parts: Sequence[tuple[A, int]],
    progress: Progress,
    deadline: Deadline,
) -> Iterator[T | None]:
    done, total = 0, sum(count for _, count in parts)
    for part, count in parts:
        yield None if deadline.is_over else work(part)
        done += count
        progress(done, total)


def tell_nobody(_done: int, _total: int) -> None:
    """Show no progress."""
