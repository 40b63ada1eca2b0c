"""Whether a process of ours hangs in the kernel, as one does that uses a file system that hangs."""

from __future__ import annotations

import os
import time

from whystuck.collect.processes.proc_files import read_small, read_state

# A disk may be slow: an operation on a busy NFS server takes seconds.
_SLOW_S = 5.0
# One that was frozen (fsfreeze) stays so until somebody acts; the kernel waits for it here.
_FROZEN_S = 1.0
_FROZEN_WAIT = b"percpu_rwsem_wait"


class HangWatch:
    """Looks again and again at the threads of one process.

    A thread that is in uninterruptible sleep at every look for some seconds hangs: a disk that is
    only slow lets it go in between.
    """

    def __init__(self, pid: int) -> None:
        """Watch ``pid``; nothing is read yet."""
        self._pid = pid
        self._since_s: dict[str, float] = {}

    def hangs(self) -> bool:
        """Look once; return whether a thread has been hanging for as long as the limit."""
        now_s = time.monotonic()
        asleep = self._list_asleep()
        self._since_s = {thread: self._since_s.get(thread, now_s) for thread in asleep}
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

    def _list_asleep(self) -> list[str]:
        try:
            threads = os.listdir(f"/proc/{self._pid}/task")  # noqa: PTH208 - names are wanted
        except OSError:
            return []
        return [one for one in threads if read_state(f"{self._pid}/task/{one}") == "D"]
