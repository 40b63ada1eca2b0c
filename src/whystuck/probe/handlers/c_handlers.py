"""Handlers of signals that are functions of libc: they stay when the interpreter is taken down."""

from __future__ import annotations

import ctypes
import errno
import os

from ..files import may_write

# Whatever the handler does, system calls go on after it.
RESTART = 0x10000000
NODEFER_RESETHAND = 0x40000000 | 0x80000000


class _SigAction(ctypes.Structure):
    """``struct sigaction`` of 64-bit Linux, glibc and musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


# Looked up here: the lock of the loader may be held by a thread that a forked child does not have.
_LIBC = ctypes.CDLL(None, use_errno=True)
_sigaction, _signal, _fallocate = _LIBC.sigaction, _LIBC.signal, _LIBC.fallocate
_KEEP_SIZE = 1
SLEEP = ctypes.cast(_LIBC.sleep, ctypes.c_void_p).value or 0
# It is called with the number of the signal, and does nothing with it.
NOTHING = ctypes.cast(_LIBC.abs, ctypes.c_void_p).value or 0


def read_handler(number: int) -> int:
    """Return the address of the handler of a signal in this process: 0 for none, -1 unknown."""
    action = _SigAction()
    failed = _sigaction(int(number), None, ctypes.byref(action))
    return -1 if failed else int(action.handler or 0)


def set_handler(number: int, address: int, flags: int) -> None:
    """Install a function as the handler of a signal; Python does not know of it."""
    action = _SigAction(address, (ctypes.c_ulong * 16)(), flags, None)
    _sigaction(int(number), ctypes.byref(action), None)


def set_default(number: int) -> None:
    """Let a signal do what it does by default; unlike `signal.signal`, from any thread."""
    _signal(int(number), None)


def keep_room(fd: int, size: int) -> None:
    """Have the disk keep room for a file, whose size stays as it is; raises OSError for a full one.

    A file system that cannot do so is left as it is, as is a process that may have no such file.
    """
    if not may_write(size):
        return
    if _fallocate(fd, _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size)) == 0:
        return
    number = ctypes.get_errno()
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise OSError(number, os.strerror(number))
