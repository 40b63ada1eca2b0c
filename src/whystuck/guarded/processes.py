"""Whose a process is, and where its files lie: of the very process that was pinned, and no other.

A pid may be given to another process at any moment. An open ``/proc/PID`` stays that of the first
one, and fails when it has ended.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from whystuck.guarded.opening import GuardError

_FLAGS: Final = os.O_DIRECTORY | os.O_CLOEXEC
_STATUS_BYTES: Final = 1 << 16
_IDS: Final = 4  # real, effective, saved, of files


@dataclass(frozen=True)
class Owner:
    """The rights of a process: its user, its group, and its other groups."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @property
    def is_us(self) -> bool:
        """Whether it has the rights of this process."""
        return self.uid == os.geteuid()


class Pinned:
    """One process, as long as this is open; a context manager.

    Raises ProcessLookupError when there is no such process.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self._folder = pid, -1
        try:
            self._folder = os.open(f"/proc/{pid}", os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            raise ProcessLookupError(None, "the process has ended") from None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of it."""
        self.close()

    def __del__(self) -> None:
        """Let go of it: a trace may keep it for as long as it is known."""
        self.close()

    def close(self) -> None:
        """Let go of it."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def read_owner(self) -> Owner:
        """Return its rights.

        Raises:
            GuardError: It has those of several users, as a set-user-ID program has.
            OSError: It has ended.
        """
        fields = self._read_status()
        uids, gids = fields.get(b"Uid", []), fields.get(b"Gid", [])
        if len(uids) != _IDS or len(gids) != _IDS:
            raise ProcessLookupError(None, "the process has ended")
        if len(set(uids)) > 1 or len(set(gids)) > 1:
            raise GuardError("the process has the rights of several users")
        groups = tuple(sorted(int(one) for one in fields.get(b"Groups", [])))
        return Owner(int(uids[0]), int(gids[0]), groups)

    def read_numbers(self) -> list[int]:
        """Return its numbers, from our PID namespace to its own; empty when it has ended."""
        return [int(word) for word in self._read_status().get(b"NSpid", [])]

    def _read_status(self) -> dict[bytes, list[bytes]]:
        """Return the words behind each name; a list of groups that is cut would name others."""
        file = os.open("status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)
        with os.fdopen(file, "rb") as stream:
            text = stream.read(_STATUS_BYTES + 1)
        if len(text) > _STATUS_BYTES:
            raise GuardError("the process has too many groups")
        # A name may hold other ends of lines than this one.
        lines = (line.partition(b":") for line in text.split(b"\n"))
        return {name: words.split() for name, _, words in lines}

    def open_root(self) -> int:
        """Return a descriptor of the root of its files; raises OSError when that may not be."""
        return os.open("root", os.O_PATH | _FLAGS, dir_fd=self._folder)

    def has_our_root(self) -> bool:
        """Return whether its root is ours; raises OSError when it may not be looked at."""
        root = self.open_root()
        try:
            return os.path.samestat(os.fstat(root), Path("/").stat())
        finally:
            os.close(root)


__all__ = ["Owner", "Pinned"]
