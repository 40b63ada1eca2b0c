"""Whether another process of ours goes on: it may hang in the kernel, be stopped, or spin."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from whystuck.collect.processes.proc_files import read_small, read_state

# A disk may be slow: an operation on a busy NFS server takes seconds.
_SLOW_S = 5.0
# One that was frozen (fsfreeze) stays so until somebody acts; the kernel waits for it here.
_FROZEN_S = 1.0
_FROZEN_WAIT = b"percpu_rwsem_wait"
# Uninterruptible sleep, and stopped by a signal.
_HELD = frozenset("DT")
_LONGEST_STEP_S = 0.5


class OwnClock:
    """Seconds in which this process ran, for who reads it several times a second.

    A job that is stopped and continued as a whole has not waited for anyone meanwhile.
    """

    def __init__(self) -> None:
        """Begin at 0."""
        self._ran_s = 0.0
        self._read_s = time.monotonic()

    def read_s(self) -> float:
        """Return the seconds since the start, those left out in which nobody could ask."""
        now_s = time.monotonic()
        self._ran_s += min(now_s - self._read_s, _LONGEST_STEP_S)
        self._read_s = now_s
        return self._ran_s


class Patience:
    """How long one waits for a process that may spin, or hang where nothing shows it."""

    def __init__(self, silent_s: float, longest_s: float) -> None:
        """Wait ``silent_s`` for each word, and ``longest_s`` in all."""
        self._clock = OwnClock()
        self._silent_s, self._longest_s = silent_s, longest_s
        self._due_s = silent_s

    def renew(self, silent_s: float = 0.0) -> None:
        """Take that there was a word; the next may take ``silent_s`` where that is longer."""
        self._due_s = self._clock.read_s() + max(silent_s, self._silent_s)

    def is_over(self) -> bool:
        """Look at the clock."""
        return self._clock.read_s() >= min(self._due_s, self._longest_s)


class HangWatch:
    """Looks again and again at the threads of one process.

    A thread that is in uninterruptible sleep at every look for some seconds hangs: a disk that is
    only slow lets it go in between. One that is stopped does not go on either.
    """

    def __init__(self, pid: int) -> None:
        """Watch ``pid``; nothing is read yet."""
        self._pid = pid
        self._clock = OwnClock()
        self._since_s: dict[str, float] = {}
        self._left_out: frozenset[str] = frozenset()

    def leave_out(self, threads: Iterable[int] | None) -> None:
        """Look at all but some threads from now on; None changes nothing."""
        if threads is not None:
            self._left_out = frozenset(map(str, threads))

    def hangs(self) -> bool:
        """Look once; return whether a thread has been hanging for as long as the limit."""
        now_s = self._clock.read_s()
        held = self._list_held()
        self._since_s = {thread: self._since_s.get(thread, now_s) for thread in held}
        return any(
            now_s - since_s >= (_FROZEN_S if self._is_frozen(thread) else _SLOW_S)
            for thread, since_s in self._since_s.items()
            if now_s - since_s >= _FROZEN_S
        )

    def _is_frozen(self, thread: str) -> bool:
        try:
            return read_small(f"{self._pid}/task/{thread}", "wchan") == _FROZEN_WAIT
        except OSError:
            return False

    def _list_held(self) -> list[str]:
        try:
            threads = os.listdir(f"/proc/{self._pid}/task")  # noqa: PTH208 - names are wanted
        except OSError:
            return []
        return [
            one
            for one in threads
            if one not in self._left_out and read_state(f"{self._pid}/task/{one}") in _HELD
        ]
