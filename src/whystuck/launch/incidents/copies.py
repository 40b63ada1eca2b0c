"""Copying evidence to where it stays, beside the job and never in its way."""

from __future__ import annotations

import queue
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path

FINISH_TIMEOUT_S = 120.0
_PATIENCE_S = 5.0


class BackgroundCopy(ABC):
    """One thread that copies folders, one after the other.

    What goes wrong is told when the job ends; a later copy of the same folder may mend it.
    """

    def __init__(self, where: str, root: Path, say: Callable[[str], None]) -> None:
        """Start the thread; ``where`` and ``root`` are told to the user: the target and what is."""
        self._where = where
        self._root = root.absolute()
        self._say = say
        self._problems: dict[Path, str] = {}
        self._is_ending = threading.Event()
        self._wanted: queue.SimpleQueue[tuple[Path, bool] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)
        # The main thread waits for signals; none may end in this one.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def push(self, folder: Path, is_last: bool = False) -> None:  # noqa: FBT001, FBT002 - a callback
        """Copy a folder soon; ``is_last`` says that it will not change any more."""
        self._wanted.put((folder, is_last))

    def finish(self, timeout_s: float = FINISH_TIMEOUT_S) -> bool:
        """Copy all that is left, say how that went, and return whether it is all there."""
        self._is_ending.set()
        for folder in self._list_left():
            self._wanted.put((folder, True))
        self._wanted.put(None)
        self._thread.join(min(_PATIENCE_S, timeout_s))
        if self._thread.is_alive():
            self._say(f"whystuck: copying the evidence to {self._where}\n")
            self._thread.join(max(0.0, timeout_s - _PATIENCE_S))
        if self._thread.is_alive():
            self._problems[self._root] = f"it was not done after {timeout_s:.0f} s"
        if self._problem:
            self._say(
                f"whystuck: the evidence could not be copied to {self._where}: {self._problem}; "
                f"it is in {self._root}\n"
            )
        return not self._problem

    @property
    def _problem(self) -> str:
        """Why something could not be copied, in a sentence; empty when all was."""
        return next((text[:300] for text in self._problems.values()), "")

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            try:
                self._copy(*wanted)
            except Exception as error:  # noqa: BLE001 - whatever a store raises: the job goes on
                self._problems[wanted[0]] = " ".join(f"{type(error).__name__}: {error}".split())
            else:
                for folder in [one for one in self._problems if one.is_relative_to(wanted[0])]:
                    del self._problems[folder]

    @abstractmethod
    def _copy(self, folder: Path, is_last: bool) -> None:  # noqa: FBT001 - as `push`
        """Copy a folder; raises whatever it likes."""

    @abstractmethod
    def _list_left(self) -> Iterable[Path]:
        """List the folders to copy when the job has ended."""
