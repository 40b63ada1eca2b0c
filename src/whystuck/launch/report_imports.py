"""Imports what a report needs while the job runs, so that its end does not wait for that.

It takes 0.4 s of CPU and 32 MB. While all is well it is done in small pieces, and by a thread of
the usual priority: one of low priority would hold the interpreter's lock on a full machine, and
with it the watcher, for seconds.
"""

from __future__ import annotations

import sys
import threading
import time

_PACKAGE = "whystuck."
# Some 130 modules of ours, of 2 ms each.
_PAUSE_S = 0.02
# A job without ranks is no longer starting then, which takes all cores where there are few.
_START_UP_S = 10.0


class ReportImports:
    """A thread that imports, and a finder that finds nothing: it lets the thread pause."""

    def __init__(self) -> None:
        """Start nothing."""
        self._thread: threading.Thread | None = None
        self._is_wanted = threading.Event()
        self._lock = threading.Lock()
        self._began_s = time.monotonic()

    def look(self, *, has_ranks: bool) -> None:
        """Begin when the job has started: when ranks say what they do, which have imported torch.

        Called again and again, by the thread that watches.
        """
        if has_ranks or time.monotonic() - self._began_s > _START_UP_S:
            self.start()

    def start(self) -> None:
        """Import a little at a time from now on; called again, it does nothing."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="imports", daemon=True)
                self._thread.start()

    def hurry(self) -> None:
        """Import what is left without a pause: there will be a report soon."""
        self._is_wanted.set()
        self.start()

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Pause before each module of ours, and find none: a finder of `sys.meta_path`."""
        if name.startswith(_PACKAGE) and threading.current_thread() is self._thread:
            self._is_wanted.wait(_PAUSE_S)

    def _run(self) -> None:
        sys.meta_path.insert(0, self)
        try:
            from whystuck.pipeline import prepare_report

            prepare_report()
        finally:
            sys.meta_path.remove(self)
