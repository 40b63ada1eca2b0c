"""Keeping the scene when a rank dies of a fatal signal."""

from __future__ import annotations

import ctypes
import faulthandler
import signal

from . import files

_FATAL_SIGNALS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_SA_NODEFER_RESETHAND = 0x40000000 | 0x80000000


def keep_fatal_signals() -> None:
    """Have Python's stacks written at a fatal signal, and the process wait a moment after.

    libc's ``sleep`` is installed as the handler, so that the number of the signal is the number
    of seconds (6 for SIGABRT, 11 for SIGSEGV); faulthandler writes and then calls what was there
    before. The process still dies of its own signal. A faulthandler that the job enabled itself
    is left alone.
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


class _SigAction(ctypes.Structure):
    """``struct sigaction`` of 64-bit Linux, glibc and musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_OPEN_FILES: list[object] = []
