"""Small writes to the evidence folder, in a thread of their own: its file system may hang.

Whoever asks for one goes on at once. A report is made from what lies on this node, and said, while
nothing can be written where the evidence is to stay.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

_T = TypeVar("_T")
# A rank that fails is held while the number of its incident is asked for. Where none comes in time,
# the file system counts as one that hangs until it has answered.
_ANSWER_S = 1.0
_STUCK_S = 3.0
_FINISH_S = 5.0
# A job notes some hundred lines in its life.
_MAX_WAITING = 10_000

# Threads that may hang while a report is made and said.
_LATE_THREADS = frozenset({"late", "copies", "logs", "release"})


class LateWriter:
    """Does one piece of work after the other; what fails is lost, and nothing else."""

    def __init__(self) -> None:
        """Start the thread."""
        self._wanted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._begun_s = 0.0
        self._has_missed = False
        self._thread = threading.Thread(target=self._run, name="late", daemon=True)
        self._thread.start()

    @property
    def is_stuck(self) -> bool:
        """Whether a piece of work has taken so long that the file system does not answer."""
        begun_s = self._begun_s
        is_slow = bool(begun_s) and time.monotonic() - begun_s >= _STUCK_S
        return is_slow or self._has_missed

    def put(self, work: Callable[[], None]) -> None:
        """Do something soon; what is more than can wait is dropped."""
        if self._wanted.qsize() < _MAX_WAITING:
            self._wanted.put(work)

    def ask(self, work: Callable[[], _T], undo: Callable[[_T], None]) -> _T | None:
        """Return what a piece of work gives; None when it takes too long, and then it is undone."""
        answer = _Answer(work, undo)
        self._wanted.put(answer.make)
        made = answer.wait(0.0 if self.is_stuck else _ANSWER_S)
        self._has_missed = made is None
        return made

    def finish(self) -> None:
        """Wait for what is left, for some seconds."""
        self._wanted.put(None)
        self._thread.join(_FINISH_S)

    def _run(self) -> None:
        while (work := self._wanted.get()) is not None:
            self._begun_s = time.monotonic()
            with suppress(Exception):  # a fault of ours costs this piece
                work()
            self._begun_s, self._has_missed = 0.0, False


class _Answer(Generic[_T]):
    """What one thread asks of another, and does not wait for longer than it wants to."""

    def __init__(self, work: Callable[[], _T], undo: Callable[[_T], None]) -> None:
        self._work, self._undo = work, undo
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._is_wanted = True
        self._made: _T | None = None

    def make(self) -> None:
        try:
            if not self._is_wanted:
                return
            made = self._work()
            with self._lock:
                if self._is_wanted:
                    self._made = made
                    return
            self._undo(made)
        finally:
            self._is_over.set()

    def wait(self, timeout_s: float) -> _T | None:
        self._is_over.wait(timeout_s)
        with self._lock:
            self._is_wanted = False
            return self._made


def list_late_threads() -> list[int]:
    """Return the ids of the threads that nobody waits for who makes a report on this node.

    Where it is made in the evidence folder itself, there is none before that answers.
    """
    threads = [one for one in threading.enumerate() if one.name in _LATE_THREADS]
    return [one.native_id for one in threads if one.native_id is not None]
