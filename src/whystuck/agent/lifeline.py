"""Ends the agent of a job when the job's supervisor has ended, or its folder is gone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from whystuck.collect.job_dirs import read_artifact

OWNER_FILE = "owner"
"""In the folder of a job: the pid of its supervisor."""
_LOOK_S = 1.0


class Lifeline:
    """Calls ``on_end`` once, with the reason in a few words.

    A file descriptor of the supervisor tells of its end at once. The signal that the kernel can
    send when a parent ends is not used: it comes already when the parent's *thread* ends.
    """

    def __init__(self, job_dir: Path, on_end: Callable[[str], None]) -> None:
        """Watch the job in ``job_dir``; needs a running loop."""
        self._job_dir = job_dir
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._pid = _supervisor_of(job_dir)
        self._fd = -1
        self._timer: asyncio.TimerHandle | None = None
        self._open()
        if not self._has_ended():
            self._look()

    def close(self) -> None:
        """Watch no longer."""
        if self._timer:
            self._timer.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        if not self._pid:
            # It was killed before we could look, and another one has cleared its folder.
            self._loop.call_soon(self._end, "its supervisor has ended")
            return
        try:
            self._fd = os.pidfd_open(self._pid)
        except ProcessLookupError:
            self._loop.call_soon(self._end, "its supervisor has ended")
        except OSError:
            return  # an old kernel, or one that forbids it: looking once a second must do
        else:
            self._loop.add_reader(self._fd, self._end, "its supervisor has ended")

    def _look(self) -> None:
        if not self._job_dir.is_dir():
            self._end("the folder of its job is gone")
        elif self._has_ended():
            self._end("its supervisor has ended")
        else:
            self._timer = self._loop.call_later(_LOOK_S, self._look)

    def _has_ended(self) -> bool:
        with suppress(PermissionError):
            try:
                os.kill(self._pid, 0)
            except ProcessLookupError:
                return True
        return False

    def _end(self, reason: str) -> None:
        self.close()
        on_end, self._on_end = self._on_end, _ignore
        on_end(reason)


def _ignore(reason: str) -> None:
    """The end was told already."""


def _supervisor_of(job_dir: Path) -> int:
    """Return its pid, which is told before an agent is started; 0 when it is not told any more."""
    with suppress(OSError, ValueError):
        pid = int(read_artifact(job_dir / OWNER_FILE, 32))
        return max(pid, 0)
    return 0
