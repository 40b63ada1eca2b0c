"""Descriptors that the probe keeps open, in a process whose job may close and reuse any of them.

Each is moved to a number that jobs seldom use, and known by device and inode. A number that has
become somebody else's is never written to nor closed; who kept it there opens another one.
"""

from __future__ import annotations

import fcntl
import os

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Callable

# Jobs that close all they know of stop at 1024, which is the default limit and that of select().
# Higher numbers cost the kernel 8 bytes for each one below: 16 KiB for this.
_HIGH = 1536
# Of a limit below that, the upper end.
_ROOM = 24
# With fewer, each one that is kept is one that the job may lack.
MIN_LIMIT = 256


def has_room() -> bool:
    """Return whether the job can spare descriptors."""
    return not 0 <= os.sysconf("SC_OPEN_MAX") < MIN_LIMIT


class Descriptor:
    """An open file of ours; from :meth:`keep` on it has a number that it loses to nobody unseen."""

    __slots__ = ("_fd", "_file", "_on_lost")

    def __init__(self, fd: int, on_lost: Callable[[], None] | None = None) -> None:
        """Take an open descriptor over, moved; raises OSError, and has closed ``fd`` then.

        Args:
            fd: The descriptor; its number is free afterwards.
            on_lost: Called by :func:`check` once when the job has closed it.
        """
        try:
            self._fd = _move(fd)
        finally:
            os.close(fd)
        self._file = os.fstat(self._fd)
        self._on_lost = on_lost
        _KEPT.append(self)

    @property
    def fd(self) -> int:
        """The number, -1 where it is not ours any more."""
        return self._fd if self.is_ours() else -1

    def is_ours(self) -> bool:
        """Return whether the number is still that of our file."""
        if self._fd >= 0:
            try:
                if os.path.samestat(os.fstat(self._fd), self._file):
                    return True
            except OSError:
                pass
        return False

    def close(self) -> None:
        """Close it, unless somebody else has it."""
        if self in _KEPT:
            _KEPT.remove(self)
        if self.is_ours():
            os.close(self._fd)
        self._fd = -1


def check() -> None:
    """Have each that was lost replaced; called by the probe's thread."""
    for one in list(_KEPT):
        if not one.is_ours():
            one.close()
            if one._on_lost is not None:
                try:
                    one._on_lost()
                except Exception:  # that part rests until the next check
                    _KEPT.append(one)


def leave_child() -> None:
    """Close all in a forked child, which needs none: a job's child may close what it likes."""
    for one in list(_KEPT):
        try:
            one.close()
        except OSError:
            continue


def _move(fd: int) -> int:
    limit = os.sysconf("SC_OPEN_MAX")
    for least in (_HIGH, limit - _ROOM):
        if least > 0 and (least < limit or limit < 0):
            try:
                return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
            except OSError:
                continue
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


_KEPT: list[Descriptor] = []
os.register_at_fork(after_in_child=leave_child)
