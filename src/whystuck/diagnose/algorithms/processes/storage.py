"""Threads that a file system does not answer: they sleep in one call and never run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whystuck.evidence.live import ProcessSample
from whystuck.evidence.records import FileWait

_NS_PER_S = 1e9


@dataclass(frozen=True)
class Silence:
    """One thread that was in one wait for a file over all looks at its process."""

    pid: int
    wait: FileWait
    span_s: float
    looks: int
    artifact: str

    @property
    def is_placed(self) -> bool:
        """Whether it is known that a file system is waited for, not just any device."""
        return bool(self.wait.mount or self.wait.path)


def find_silence(processes: Sequence[ProcessSample]) -> Silence | None:
    """Find a thread that waits for a file system which does not answer.

    A thread that ran between two looks was answered. One that slept may wait for a slow disk: when
    that completes requests meanwhile, it is not silent.

    Args:
        processes: Looks at one process.

    Returns:
        The thread, the main one before others; None when there is none, or only one look.
    """
    looks = sorted(processes, key=lambda look: look.taken_ns)
    if len(looks) < 2:  # noqa: PLR2004 - one look cannot show that nothing moves
        return None
    first, last = looks[0], looks[-1]
    for wait in sorted(last.file_waits, key=lambda wait: not wait.is_main):
        series = [_find(look, wait.thread_id) for look in looks]
        if all(one is not None and _is_same(one, wait) for one in series):
            span_s = (last.taken_ns - first.taken_ns) / _NS_PER_S
            return Silence(last.pid, wait, span_s, len(looks), last.artifact)
    return None


def _find(look: ProcessSample, thread_id: int) -> FileWait | None:
    return next((wait for wait in look.file_waits if wait.thread_id == thread_id), None)


def _is_same(wait: FileWait, other: FileWait) -> bool:
    """Tell whether a thread did not run between two looks, and nobody else was answered."""
    return (
        wait.switches == other.switches
        and (wait.call, wait.path) == (other.call, other.path)
        and wait.done == other.done
    )
