"""Reading source files that stacks name, with no more rights than the ranks have that told them.

A rank may name any path. Root, who looks at a job of another user, must not read it as root.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from whystuck.collect.processes.target import Target
from whystuck.guarded.folders import FILE_FLAGS
from whystuck.guarded.opening import GuardError
from whystuck.guarded.processes import Owner, Pinned
from whystuck.guarded.user_process import UserProcess

MAX_FILE_BYTES = 512 << 10
_TIMEOUT_S = 5.0


class SourceReader:
    """Reads files as the users of some ranks; made while these live, as the kernel tells who."""

    def __init__(self, targets: Iterable[Target] = ()) -> None:
        self._others: dict[Owner, int] = {}
        """The other users, each with one of their processes."""
        self._has_lost = False
        if os.geteuid() == 0:
            for target in targets:
                self._note(target)

    def _note(self, target: Target) -> None:
        try:
            with Pinned(target.pid) as process:
                owner = process.read_owner()
                if not (owner.is_us and process.has_our_root()):
                    self._others.setdefault(owner, target.pid)
        except OSError:
            # It has ended, or is of several users: what it left tells whose it was.
            with suppress(OSError):
                is_ours = target.job_dir is None or target.job_dir.stat().st_uid == 0
                self._has_lost = self._has_lost or not is_ours

    def read_all(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return the files that can be read and are not too large, by path."""
        if not (self._others or self._has_lost):
            return {path: data for path in paths if (data := _read_plain(path)) is not None}
        found: dict[str, bytes] = {}
        left = list(paths)
        for owner, pid in self._others.items():
            with suppress(OSError):
                found |= _read_as(owner, pid, [path for path in left if path not in found])
        return found


def _read_plain(path: str) -> bytes | None:
    try:
        source = Path(path)
        if not source.is_file() or source.stat().st_size > MAX_FILE_BYTES:
            return None
        with os.fdopen(os.open(path, FILE_FLAGS & ~os.O_NOFOLLOW), "rb") as stream:
            return stream.read(MAX_FILE_BYTES)
    except OSError:
        return None


def _read_as(owner: Owner, pid: int, paths: Iterable[str]) -> dict[str, bytes]:
    """Read files below the root of a process, with its rights."""
    with Pinned(pid) as process:
        if process.read_owner() != owner:
            raise GuardError("the process is another user's by now")
        root = process.open_root()
    found = {}
    try:
        with UserProcess(owner, root, timeout_s=_TIMEOUT_S) as reader:
            for path in paths:
                with suppress(OSError):  # one that hung has ended it, and each answer comes at once
                    told = reader.ask("look into", path=path, max_bytes=MAX_FILE_BYTES)
                    found[path] = reader.read(0, told["size_bytes"])
                    reader.ask("close")
    finally:
        os.close(root)
    return found


__all__ = ["MAX_FILE_BYTES", "SourceReader"]
