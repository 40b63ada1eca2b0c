"""The count of steps of this process, in memory that an agent can read at any moment.

An anonymous file: it lies on no disk that could be full, leaves nothing behind, and whoever may
look into ``/proc/PID/fd`` finds it by its name. All numbers are unsigned, 64 bits, as the machine
has them: the version of this layout, the count, then when the last steps ended (wall-clock, in
nanoseconds), step ``n`` at place ``n % KEPT``; 0 is a step that was not seen.
"""

from __future__ import annotations

import fcntl
import os
import time

from .descriptors import Descriptor
from .files import map_shared

NAME = "whystuck-steps"
VERSION = 1
KEPT = 16
_COUNT, _TIMES = 1, 2
SIZE_BYTES = 8 * (_TIMES + KEPT)
# fcntl has no names for them in Python 3.9: F_ADD_SEALS; F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW.
_ADD_SEALS, _SEALS = 1033, 1 | 2 | 4


class SharedSteps:
    """Written by the thread that makes the steps; a forked child writes to it no more."""

    def __init__(self) -> None:
        """Make it; raises OSError or AttributeError where the system has no such files."""
        fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.pwrite(fd, bytes(SIZE_BYTES), 0)
            # Nobody can cut it, which would end this process by a SIGBUS.
            fcntl.fcntl(fd, _ADD_SEALS, _SEALS)
            memory = map_shared(fd, SIZE_BYTES)
        except OSError:
            os.close(fd)
            raise
        # By this one the agent finds it.
        self._file = Descriptor(fd)
        self._words: memoryview | None = memory.cast("Q")
        self._words[0] = VERSION
        os.register_at_fork(after_in_child=self.leave)

    def note(self, count: int) -> None:
        """Take the number of steps that have been made by now."""
        words = self._words
        if words is None:
            return
        now_ns = time.time_ns()
        if count - words[_COUNT] != 1:
            # Several at once, as a profiler of the job tells them: all of them ended now.
            for step in range(count - KEPT + 1, count):
                if step > words[_COUNT]:
                    words[_TIMES + step % KEPT] = now_ns
        words[_TIMES + count % KEPT] = now_ns
        words[_COUNT] = count

    def leave(self) -> None:
        """Write no more."""
        self._words = None
