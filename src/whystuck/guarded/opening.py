"""Opening a path below a folder, so that nothing in it leads anywhere else: openat2 of Linux 5.6.

There is no other way that holds against somebody who changes the path meanwhile, so nothing stands
in for it where the kernel does not have it, or a filter of system calls forbids it.
"""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from typing import Final

_NUMBER: Final = 437  # of openat2, on all machines
_NO_MAGICLINKS: Final = 0x02
_NO_SYMLINKS: Final = 0x04
_IN_ROOT: Final = 0x10
# The kernel says so when a folder was renamed while it looked.
_TRIES: Final = 32


class GuardError(OSError):
    """A path that is left alone; ``strerror`` says why."""

    def __init__(self, message: str, number: int = errno.EPERM) -> None:
        super().__init__(number, message)

    def __str__(self) -> str:
        """Return the reason alone."""
        return str(self.strerror)


class _How(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_below(
    folder: int,
    path: str,
    flags: int,
    *,
    mode: int = 0,
    follows_links: bool = False,
) -> int:
    """Open a path as if a folder were the root of all files, and follow no link of any kind.

    Args:
        folder: The descriptor of the folder.
        path: The path below it; it may begin with a slash.
        flags: As for `os.open`.
        mode: Of a file that is made.
        follows_links: Whether links are followed after all, as far as they stay below the folder;
            only for who has the rights of those who made them.

    Returns:
        A descriptor, closed on exec.

    Raises:
        GuardError: This kernel cannot do it safely, or the path has ``..`` in it.
        OSError: It cannot be opened; ELOOP is a link.
    """
    name = os.fsencode(path)
    if b"\0" in name or b".." in name.split(b"/"):
        raise GuardError("the path has `..` in it")
    resolve = _IN_ROOT | _NO_MAGICLINKS
    resolve |= 0 if follows_links else _NO_SYMLINKS
    for _ in range(_TRIES):
        made, number = _call(folder, name, _How(flags | os.O_CLOEXEC, mode, resolve))
        if made >= 0:
            return made
        if number not in {errno.EAGAIN, errno.EINTR}:
            break
    if number == errno.ENOSYS or (number == errno.EPERM and not can_open_below()):
        raise GuardError(NO_OPENAT2, number)
    if number == errno.ELOOP:
        raise GuardError("its path leads through a link", number)
    raise OSError(number, os.strerror(number))


NO_OPENAT2: Final = (
    "files of other users are opened by openat2, which this kernel does not have (Linux 5.6 has),"
    " or a filter of system calls forbids"
)


@cache
def can_open_below() -> bool:
    """Return whether this kernel has openat2, and lets us call it."""
    folder = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        made, _ = _call(folder, b".", _How(flags, 0, _IN_ROOT | _NO_SYMLINKS))
    finally:
        os.close(folder)
    if made >= 0:
        os.close(made)
    return made >= 0


def _call(folder: int, name: bytes, how: _How) -> tuple[int, int]:
    """Return the descriptor, or -1, and what went wrong."""
    call = _libc().syscall
    call.restype = ctypes.c_long
    made = call(
        ctypes.c_long(_NUMBER),
        ctypes.c_int(folder),
        ctypes.c_char_p(name),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    return int(made), ctypes.get_errno()


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


__all__ = ["NO_OPENAT2", "GuardError", "can_open_below", "open_below"]
