"""The folders in which the probe of a process looks for what is said of it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from whystuck.guarded.folders import find_file, folder_at, put_file


@dataclass(frozen=True)
class MarkFolder:
    """One such folder: that of the agent, which others may share, or that of the job.

    ``uid`` is whose folder it is, ``reader`` the user of the process. Files are made under a name
    that nobody can have laid a link or pipe at, so that what others put there does no harm.
    """

    path: str
    uid: int
    reader: int = -1
    is_private: bool = False

    def leave(self, name: str, word: str = "") -> bool:
        """Make a file with some words in it, in the place of another one; return whether it is."""
        is_given = os.geteuid() == 0 and self.reader > 0
        owner = (self.reader, -1) if is_given else None
        try:
            with folder_at(self.path, uid=self.uid, is_private=self.is_private) as folder:
                put_file(folder, name, word.encode(), owner=owner)
        except OSError:
            return False
        return True

    def take_back(self, name: str) -> None:
        """Remove such a file, if one lies there."""
        with (
            suppress(OSError),
            folder_at(self.path, uid=self.uid, is_private=self.is_private) as folder,
        ):
            if find_file(folder, name) is not None:
                os.unlink(name, dir_fd=folder)


def list_mark_folders(agent: Path | None, job_dir: str, uid: int) -> tuple[MarkFolder, ...]:
    """Return the folders in which a process is told something.

    Args:
        agent: That of the agent, where it has one.
        job_dir: That of the job, empty when there is none.
        uid: The user of the process; -1 for ours.
    """
    ours = os.geteuid()
    reader = ours if uid < 0 else uid
    found = [MarkFolder(job_dir, reader, reader, is_private=True)] if job_dir else []
    return (*found, *([MarkFolder(str(agent), ours, reader)] if agent else []))


__all__ = ["MarkFolder", "list_mark_folders"]
