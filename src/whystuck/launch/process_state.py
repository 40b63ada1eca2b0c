"""Whether a process of ours hangs in the kernel, as one does that uses a file system that hangs."""

from __future__ import annotations

import time
from pathlib import Path


class HangWatch:
    """Looks again and again at the threads of one process.

    A thread that is in uninterruptible sleep at every look for ``limit_s`` hangs: a disk that is
    only slow lets it go in between.
    """

    def __init__(self, pid: int, limit_s: float) -> None:
        """Watch ``pid``; nothing is read yet."""
        self._folder = Path(f"/proc/{pid}/task")
        self._limit_s = limit_s
        self._since_s: dict[str, float] = {}

    def hangs(self) -> bool:
        """Look once; return whether a thread has been hanging for as long as the limit."""
        now_s = time.monotonic()
        asleep = self._list_asleep()
        self._since_s = {thread: self._since_s.get(thread, now_s) for thread in asleep}
        return any(now_s - since_s >= self._limit_s for since_s in self._since_s.values())

    def _list_asleep(self) -> list[str]:
        try:
            return [one.name for one in self._folder.iterdir() if _read(one) == "D"]
        except OSError:
            return []


def read_state(pid: int) -> str:
    """Return the letter that /proc has for the state of a process; empty when it is gone."""
    return _read(Path(f"/proc/{pid}"))


def _read(folder: Path) -> str:
    try:
        stat = (folder / "stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]
