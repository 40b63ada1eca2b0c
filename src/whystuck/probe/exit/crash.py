"""Keeping the scene when a rank dies of a fatal signal."""

from __future__ import annotations

import os
import signal
import time

from .. import files
from ..descriptors import Descriptor
from ..handlers.c_handlers import (
    NODEFER_RESETHAND,
    SLEEP,
    keep_room,
    read_handler,
    set_default,
    set_handler,
)
from . import faulthandler_calls
from .faulthandler_calls import FILES, is_enabled

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
_MORE_GRACE_S = 3.0
_LOOK_EVERY_S = 0.05
# What stacks take at most, kept free for them: on a full disk nobody would know of the signal.
_MAX_STACKS_BYTES = 1 << 16


def keep_fatal_signals() -> None:
    """Have Python's stacks written at a fatal signal, and the process wait a moment after.

    libc's ``sleep`` is installed as the handler, so that the number of the signal is the number
    of seconds (6 for SIGABRT, 11 for SIGSEGV); faulthandler writes and then calls what was there
    before. The process still dies of its own signal. A faulthandler that the job enables itself,
    before or after, is left alone: all is as it would be without us then.

    A process that was sent the signal, and did nothing wrong itself, lives on after the sleep:
    `finish` ends it. A thread that sleeps must not be overtaken by one that ends the process with
    a code of its own: `wait_for_dying` sees to that. A forked child dies as it would without us.
    """
    if is_enabled():
        return
    # Opened first: whoever sleeps after a signal must leave word of it.
    file = _open_file()
    for number in _FATAL_SIGNALS:
        # Asked of the kernel: Python does not know of handlers that a library has installed.
        if not read_handler(number):
            set_handler(number, SLEEP, NODEFER_RESETHAND)
    faulthandler_calls.enable(file.fd, all_threads=True)
    FILES[:] = [file]
    faulthandler_calls.LEAVE[:] = [let_go]
    faulthandler_calls.stand_before()
    os.register_at_fork(after_in_child=_leave_child)


def _open_file() -> Descriptor:
    """Open our file, which stays open while the process lives."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    file = Descriptor(os.open(files.path_of("fatal"), flags, 0o600), _replace_file)
    try:
        keep_room(file.fd, _MAX_STACKS_BYTES)
    except OSError:
        file.close()
        raise
    return file


def _replace_file() -> None:
    """Take another file where the job has closed ours: it may have one of its own there soon."""
    if FILES:
        try:
            file = _open_file()
        except OSError:
            let_go()
            raise
        faulthandler_calls.enable(file.fd, all_threads=True)
        FILES[:] = [file]


def finish() -> None:
    """End the process by the fatal signal that it has slept through; called once a second."""
    number, since_s = _find_slept_through()
    if number and since_s > number + _GRACE_S:
        set_default(number)
        os.kill(os.getpid(), number)


def wait_for_dying() -> None:
    """Do not let the process end with a code while a thread of it dies of a signal."""
    deadline_s = time.monotonic() + max(_FATAL_SIGNALS) + _MORE_GRACE_S
    while _is_dying() and time.monotonic() < deadline_s:
        finish()
        time.sleep(_LOOK_EVERY_S)


def let_go() -> None:
    """Have a fatal signal end the process as it would without us, from now on.

    When the interpreter is taken down, nobody could wait for a thread that sleeps, and the stacks
    of Python are not to be read any more.
    """
    if not FILES:
        return
    # What it calls after itself is known to it alone, and put back by it.
    faulthandler_calls.disable()
    for number in _FATAL_SIGNALS:
        if read_handler(number) == SLEEP:
            set_default(number)
    for file in FILES:
        file.close()
    FILES.clear()


def _is_dying() -> bool:
    """Tell whether a thread of this process writes its stacks now, or sleeps after that."""
    if _find_slept_through()[0]:
        return True
    # While faulthandler is in its place, ours is there only from when it begins to write.
    return is_enabled() and any(read_handler(n) == SLEEP for n in _FATAL_SIGNALS)


def _find_slept_through() -> tuple[int, float]:
    """Return the fatal signal after which a thread of this process sleeps, and since when in s.

    Returns:
        Zeros when there is none.
    """
    for file in FILES:
        fd = file.fd
        if fd < 0:
            continue  # the job has closed it
        written = os.fstat(fd)
        if not written.st_size:
            continue
        # Not by its name: the job may see other files than it did, or be another user.
        first = os.pread(fd, 200, 0)
        for number, words in _NAMES.items():
            # Where no handler is left, the signal came here, and not to a child that some C code
            # has forked; and no other library has taken care of it.
            if first.startswith(b"Fatal Python error: " + words) and not read_handler(number):
                return int(number), time.time() - written.st_mtime
    return 0, 0.0


def _leave_child() -> None:
    """Let a forked child alone: what it writes would be taken for an end of its parent."""
    try:
        let_go()
    except Exception:  # it would be printed
        return
    finally:
        FILES.clear()
