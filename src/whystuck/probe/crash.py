"""Keeping the scene when a rank fails: exceptions, fatal signals and the way out."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Any, Callable

from . import dumps, files, wire
from .identity import Identity

_HOLD_S = 8.0
_MAX_FRAMES = 100
_FATAL_SIGNALS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_SA_NODEFER_RESETHAND = 0x40000000 | 0x80000000
_Hook = Callable[[type, BaseException, "TracebackType | None"], Any]


class ExceptionKeeper:
    """A link in the chain of ``sys.excepthook`` that records, holds, and passes on."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._seen: int | None = None

    def watch(self) -> None:
        """Put us first in the chain, again when somebody else has taken the place."""
        current = sys.excepthook
        if getattr(current, "_whystuck", False):
            return

        def hook(kind: type, value: BaseException, trace: TracebackType | None) -> None:
            try:
                self._keep(value, trace)
            except Exception:  # the job's own report of its error goes on
                current(kind, value, trace)
                return
            current(kind, value, trace)

        hook._whystuck = True  # type: ignore[attr-defined]
        sys.excepthook = hook

    def _keep(self, value: BaseException, trace: TracebackType | None) -> None:
        if self._seen == id(value) or isinstance(value, KeyboardInterrupt):
            return
        self._seen = id(value)
        record = describe(value, trace)
        files.write_json(files.path_of("exception"), record)
        # The supervisor answers when it has looked at all ranks: the launcher ends the others
        # within a tenth of a second after this one is gone.
        wire.tell({"type": "exception", "pid": os.getpid(), "rank": self._identity.rank}, _HOLD_S)


def describe(value: BaseException, trace: TracebackType | None) -> dict[str, object]:
    """Describe an exception, frames innermost first, as plain values."""
    frames = traceback.extract_tb(trace)[-_MAX_FRAMES:]
    kind = type(value)
    prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return {
        "pid": os.getpid(),
        "type": prefix + kind.__qualname__,
        "message": str(value)[:4000],
        "thread": threading.current_thread().name,
        "is_main_thread": threading.current_thread() is threading.main_thread(),
        "time_ns": time.time_ns(),
        "frames": [
            {"name": frame.name, "filename": frame.filename, "line": frame.lineno or 0}
            for frame in reversed(frames)
        ],
    }


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
        if signal.getsignal(number) == signal.SIG_DFL:
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


_OPEN_FILES: list[Any] = []


def watch_exit(identity: Identity) -> None:
    """Leave a last dump when the interpreter ends: what this rank had done is asked for later."""
    owner = os.getpid()

    def leave() -> None:
        try:
            if os.getpid() == owner:
                dumps.dump_recorder(files.path_of("final"))
                wire.tell({"type": "exiting", "pid": owner, "rank": identity.rank})
        except Exception:  # the process is on its way out
            return

    atexit.register(leave)
