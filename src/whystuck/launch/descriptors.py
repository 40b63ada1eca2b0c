"""The descriptors that the user gave us: the command gets them all, and we keep none longer."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_STANDARD = (0, 1, 2)
_LIST = Path("/proc/self/fd")


def reserve_standard() -> list[int]:
    """Open ``/dev/null`` for each standard stream that is closed; return which those are.

    Otherwise a descriptor of ours would get the number, and be written to as if it were the
    stream. The command does not inherit what is opened here.
    """
    closed = []
    for fd in _STANDARD:
        try:
            # Python opens what it opens for itself only; a stream of our caller is inherited.
            if not os.get_inheritable(fd):
                closed.append(fd)
        except OSError:
            closed.append(fd)
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:  # the lowest free number is taken, so that this is the next one up
                os.dup2(null, fd, inheritable=False)
                os.close(null)
    return closed


def list_inherited() -> list[int]:
    """Return the descriptors above 2 that a program which we start would inherit."""
    inherited = []
    for fd in list_open():
        with suppress(OSError):
            if fd not in _STANDARD and os.get_inheritable(fd):
                inherited.append(fd)
    return inherited


def list_open() -> list[int]:
    """Return all open descriptors; the one that reads the list is among them, and closed."""
    return [int(one.name) for one in _LIST.iterdir()]


def close_all(fds: list[int]) -> None:
    """Close descriptors, those that are closed already too."""
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def silence(*fds: int) -> None:
    """Put ``/dev/null`` in the place of standard streams, so that nobody waits for our end."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd, inheritable=False)
    if null not in fds:
        os.close(null)
