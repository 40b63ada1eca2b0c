"""The processes that the watcher has stopped to keep a scene, as the front knows them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from whystuck.launch.link import Link


class HeldProcesses:
    """Hears of them while the command runs; should the watcher die, it lets them go on."""

    def __init__(self) -> None:
        """Know of none."""
        self._pids: list[int] = []

    def hear(self, watcher: Link | None) -> None:
        """Take what the watcher has said; it says so before it stops anybody."""
        while watcher is not None and not watcher.is_closed:
            message = watcher.receive(0)
            if message is not None and message["kind"] == "hold":
                self._pids = message["pids"]
            elif message is None and not watcher.is_closed:
                return
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._pids = []

    def __contains__(self, pid: int) -> bool:
        """Return whether the watcher has stopped a process."""
        return pid in self._pids
