"""A small file at a path that a process sees, read with no more rights than the process has.

Its user decides what lies at the path, and, with a root or mounts of his own, where it leads.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from whystuck.guarded.folders import FILE_FLAGS
from whystuck.guarded.processes import Owner, Pinned
from whystuck.guarded.user_process import UserProcess

_TIMEOUT_S: Final = 5.0
# Our own links are followed: they show nothing that we could not see without them.
_OWN: Final = FILE_FLAGS & ~os.O_NOFOLLOW


def read_file_of(pid: int, path: str, max_bytes: int) -> bytes:
    """Return a plain file of a process; links in its path are followed below its root.

    Args:
        pid: The process.
        path: The file, as the process names it: absolute, without ``..``.
        max_bytes: A larger file is refused.

    Raises:
        OSError: It cannot be read; GuardError where that is not safe.
    """
    with Pinned(pid) as process:
        owner = process.read_owner()
        is_own = owner.is_us and process.has_our_root()
        if not is_own:
            root = process.open_root()
    if is_own:
        return _read_own(path, max_bytes)
    try:
        return _read_as(owner, root, path, max_bytes)
    finally:
        os.close(root)


def _read_own(path: str, max_bytes: int) -> bytes:
    with os.fdopen(os.open(path, _OWN), "rb") as stream:
        is_plain = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
        data = stream.read(max_bytes + 1) if is_plain else b""
    return data if len(data) <= max_bytes else b""


def _read_as(owner: Owner, root: int, path: str, max_bytes: int) -> bytes:
    with UserProcess(owner, root, timeout_s=_TIMEOUT_S) as reader:
        told = reader.ask("look into", path=path, max_bytes=max_bytes)
        return reader.read(0, told["size_bytes"])


__all__ = ["read_file_of"]
