"""The folder below which an agent has raw traces written, and those that killed agents left.

An agent holds a lock on its folder, so one without a lock is nobody's. The kernel frees the lock
of an agent that was killed.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from whystuck.agent.ondemand.raw_files import PART_SUFFIX, ROOTS, make_root, remove_folder
from whystuck.guarded.folders import folder_at, list_names

_MIN_AGE_S: Final = 60.0  # one that is younger may not be locked yet
_KEEP_S: Final = 7 * 86400.0
_SWEEP_S: Final = 60.0
_MAX_NAMES: Final = 256


class RawRoot:
    """The folder of one agent; made when it is needed, and made anew where it was removed."""

    def __init__(self, wanted: Path | None) -> None:
        """Take a folder that somebody chose, or one of our own in ``/tmp``."""
        self._path = wanted
        self._is_temporary = wanted is None
        self._lock = -1
        self._swept_s = float("-inf")

    @property
    def path(self) -> Path:
        """Where it lies; only after `make`."""
        assert self._path is not None  # noqa: S101 - for the type checker
        return self._path

    def make(self) -> None:
        """Make the folder where it is missing; raises UsageError when it cannot be made."""
        if self._path is not None and self._path.is_dir():
            return
        self._path = make_root(self._path)
        if self._is_temporary:
            self._unlock()
            with suppress(OSError):  # it is still told by its age, and by the processes in it
                self._lock = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def is_sweep_due(self) -> bool:
        """Whether to look for what other agents left; true once a minute at most."""
        now_s = time.monotonic()
        if not self._is_temporary or now_s - self._swept_s < _SWEEP_S:
            return False
        self._swept_s = now_s
        return True

    def close(self) -> None:
        """Remove the folder when it is our own and nothing lies there."""
        if self._is_temporary and self._path is not None:
            with suppress(OSError):
                self._path.rmdir()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def sweep() -> None:
    """Remove what agents of this user that were killed have left in ``/tmp``.

    A trace that a living process may still write stays, and a whole one for a week, as somebody may
    want it. Never raises, but may take long: it is for a thread.
    """
    with suppress(OSError):
        for root in sorted(ROOTS.parent.glob(f"{ROOTS.name}*")):
            with suppress(OSError):
                _sweep_root(root)


def _sweep_root(root: Path) -> None:
    """Remove one, as far as it may be; raises OSError when it is in use or not empty then."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        # Before the lock: an agent that has just made it must get that at once.
        if status.st_uid != os.getuid() or time.time() - status.st_mtime < _MIN_AGE_S:
            return
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for folder in sorted(root.iterdir()):
            if folder.is_dir() and not folder.is_symlink() and _is_left(folder):
                remove_folder(folder)
        root.rmdir()
    finally:
        os.close(fd)


def _is_left(folder: Path) -> bool:
    """Whether nobody writes to the folder of a trace, and nobody wants what lies there."""
    with folder_at(folder) as opened:
        names = list_names(opened, _MAX_NAMES)
        stats = [os.stat(one, dir_fd=opened, follow_symlinks=False) for one in names]
        age_s = time.time() - max(one.st_mtime for one in (os.fstat(opened), *stats))
    pid = folder.name.rpartition("-")[2]
    if age_s < _MIN_AGE_S or not pid.isdecimal() or Path("/proc", pid).exists():
        return False
    return age_s > _KEEP_S or all(one.endswith(PART_SUFFIX) for one in names)


__all__ = ["RawRoot", "sweep"]
