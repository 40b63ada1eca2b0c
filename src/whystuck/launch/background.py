"""Work that takes seconds, in a thread of its own, one piece at a time; and a word to the user."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from whystuck.collect.processes.allocator import return_memory
from whystuck.safe_text.escaping import show_line


@dataclass
class Background:
    """Runs work beside the supervisor's loop; a fault of ours is told and ends nothing else.

    ``note`` gets a sentence on a fault, ``say`` a line for the user, and ``after`` is called when a
    piece of work is over.
    """

    note: Callable[[str], None]
    say: Callable[[str], None]
    after: Callable[[], None]
    _thread: threading.Thread | None = None
    _is_frozen: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether the last piece of work goes on."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Begin a piece of work; the one before must be over."""

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - our own fault must not end the job
                self.note(describe_fault(error))
                self.say(f"whystuck: a report could not be made: {show_line(error)}\n")
            finally:
                self._collect()
                return_memory()
                self.after()

        self._thread = threading.Thread(target=run, name="evidence", daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        """Free the cycles of a piece of work before other objects take the room between them.

        A look leaves a thousand objects in cycles, and Python would collect them some looks later.
        The modules that the first work has loaded are left out from then on: to go over their
        60,000 objects takes 13 ms of CPU.
        """
        gc.collect()
        if not self._is_frozen:
            gc.freeze()
            self._is_frozen = True

    def join(self, timeout_s: float) -> None:
        """Wait until the last piece of work is over, or for ``timeout_s``."""
        if self._thread is not None:
            self._thread.join(timeout_s)


def describe_fault(error: Exception) -> str:
    """Return a sentence on a fault of our own."""
    return f"whystuck itself failed: {type(error).__name__}: {error}"


def say(text: str) -> None:
    """Print for the user; what whystuck says goes to stderr, stdout is the job's."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        return
