"""Descriptors that the probe keeps open, in a process whose job may close and reuse any of them.

Each is moved to a number that jobs seldom use, and known by device and inode. A number that has
become somebody else's is never written to nor closed; who kept it there opens another one.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Callable

# Jobs that close all they know of stop at 1024, which is the default limit and that of select().
# Higher numbers cost the kernel 8 bytes for each one below: 16 KiB for this.
HIGH = 1536
# Of a limit below that, the upper end.
_ROOM = 24
# With fewer, each one that is kept is one that the job may lack.
MIN_LIMIT = 256


def has_room() -> bool:
    """Return whether the job can spare descriptors."""
    return not 0 <= os.sysconf("SC_OPEN_MAX") < MIN_LIMIT


class Descriptor:
    """An open file of ours, at a number that it loses to nobody unseen."""

    __slots__ = ("_fd", "_file", "_on_lost")

    def __init__(
        self, fd: int, on_lost: Callable[[], None] | None = None, number: int = -1
    ) -> None:
        """Take an open descriptor over, moved; raises OSError, and has closed ``fd`` then.

        Args:
            fd: The descriptor; its number is free afterwards.
            on_lost: Called by :func:`check` once when the job has closed it.
            number: What it is to be moved to, if that is free; -1 for any.
        """
        try:
            moved = _move(fd, number)
        finally:
            os.close(fd)
        self._keep(moved, on_lost)

    def _keep(self, fd: int, on_lost: Callable[[], None] | None) -> None:
        self._fd, self._on_lost = fd, on_lost
        self._file = os.fstat(fd)
        _KEPT.append(self)

    @classmethod
    def watch(cls, fd: int, on_lost: Callable[[], None]) -> Descriptor:
        """Return one that stays where it is, as others know the number; raises OSError."""
        made = cls.__new__(cls)
        made._keep(fd, on_lost)
        return made

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


def check() -> bool:
    """Have each that was lost replaced, by the probe's thread; return whether there was one."""
    has_lost = False
    for one in list(_KEPT):
        if not one.is_ours():
            has_lost = True
            one.close()
            if one._on_lost is not None:
                try:
                    one._on_lost()
                except Exception:  # that part rests until the next check
                    _KEPT.append(one)
    return has_lost


def fill() -> list[int]:
    """Take all numbers below ours, and return those: what opens next gets a high one.

    Returns:
        The descriptors to close, soon. None where the limit leaves no higher number.
    """
    limit = os.sysconf("SC_OPEN_MAX")
    taken: list[int] = []
    if 0 <= limit < 2 * HIGH:
        return taken
    try:
        taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        while taken[-1] < HIGH - 1:
            taken.append(os.dup(taken[0]))
    except OSError:  # the system has no more
        pass
    return taken


def leave_child() -> None:
    """Close all in a forked child, which needs none: a job's child may close what it likes."""
    while _KEPT:
        try:
            _KEPT[-1].close()
        except OSError:
            continue


def _move(fd: int, number: int) -> int:
    import fcntl  # not needed when the interpreter starts

    limit = os.sysconf("SC_OPEN_MAX")
    for least in (number, HIGH, limit - _ROOM):
        if least > 0 and (least < limit or limit < 0):
            try:
                return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
            except OSError:
                continue
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


_KEPT: list[Descriptor] = []
os.register_at_fork(after_in_child=leave_child)
