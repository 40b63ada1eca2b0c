"""Where a path leads by links of this user and of root; those of others are not followed.

Anybody may put a link into a folder such as /tmp, under the name of a file that is to be written.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

_MAX_LINKS: Final = 40


def follow_own_links(path: Path) -> Path:
    """Return the path behind the links at a path, as far as they are this user's or root's.

    Args:
        path: What a user named. Folders above it are trusted: links in their paths are followed.

    Returns:
        What is no link, does not exist, is a link of another user, or one of /proc, which is none
        to a path.

    Raises:
        OSError: There are too many links.
    """
    for _ in range(_MAX_LINKS):
        try:
            owner, target = path.lstat().st_uid, path.readlink()
        except OSError:
            return path
        behind = path.parent / target
        is_magic = path.exists() and not behind.exists()
        if not _is_own(owner) or is_magic:
            return path
        path = behind
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def is_of_others(path: Path) -> bool:
    """Return whether another user has laid a link or a pipe at a path."""
    try:
        status = path.lstat()
    except OSError:
        return False
    is_laid = stat.S_ISLNK(status.st_mode) or stat.S_ISFIFO(status.st_mode)
    return is_laid and not _is_own(status.st_uid)


def _is_own(uid: int) -> bool:
    return uid in {0, os.geteuid()}


__all__ = ["follow_own_links", "is_of_others"]
