"""Keeping the scene when a rank dies of a fatal signal."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import time

from . import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

_FATAL_SIGNALS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
# How faulthandler names them.
_NAMES = {
    signal.SIGABRT: b"Abort",
    signal.SIGSEGV: b"Segmentation",
    signal.SIGBUS: b"Bus",
    signal.SIGILL: b"Illegal",
    signal.SIGFPE: b"Floating",
}
_GRACE_S = 1.0
_SA_NODEFER_RESETHAND = 0x40000000 | 0x80000000


def keep_fatal_signals() -> None:
    """Have Python's stacks written at a fatal signal, and the process wait a moment after.

    libc's ``sleep`` is installed as the handler, so that the number of the signal is the number
    of seconds (6 for SIGABRT, 11 for SIGSEGV); faulthandler writes and then calls what was there
    before. The process still dies of its own signal. A faulthandler that the job enabled itself
    is left alone.

    A process that was sent the signal, and did nothing wrong itself, lives on after the sleep:
    `finish` ends it.
    """
    if faulthandler.is_enabled():
        return
    libc = ctypes.CDLL(None)
    sleep = ctypes.cast(libc.sleep, ctypes.c_void_p).value
    for number in _FATAL_SIGNALS:
        # Asked of the kernel: Python does not know of handlers that a library has installed.
        before = _SigAction()
        if libc.sigaction(int(number), None, ctypes.byref(before)) == 0 and not before.handler:
            action = _SigAction(sleep, (ctypes.c_ulong * 16)(), _SA_NODEFER_RESETHAND, None)
            libc.sigaction(int(number), ctypes.byref(action), None)
    # Kept open for the life of the process: faulthandler writes to the descriptor.
    file = open(files.path_of("fatal"), "wb")  # noqa: SIM115
    faulthandler.enable(file, all_threads=True)
    _OPEN_FILES.append(file)


def finish() -> None:
    """End the process by the fatal signal that it has slept through; called once a second."""
    for file in _OPEN_FILES:
        written = os.fstat(file.fileno())
        if not written.st_size:
            continue
        with open(files.path_of("fatal"), "rb") as stream:
            first = stream.readline(200)
        if not os.path.samestat(written, os.stat(files.path_of("fatal"))):
            return  # the job has closed our file, and this is one of its own
        for number, words in _NAMES.items():
            if first.startswith(b"Fatal Python error: " + words):
                if time.time() - written.st_mtime > number + _GRACE_S:
                    ctypes.CDLL(None).signal(int(number), None)
                    os.kill(os.getpid(), number)
                return


class _SigAction(ctypes.Structure):
    """``struct sigaction`` of 64-bit Linux, glibc and musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_OPEN_FILES: list[BinaryIO] = []
