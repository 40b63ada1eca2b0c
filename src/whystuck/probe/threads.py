"""Threads of the probe, which the job does not meet among its own, and their names."""

from __future__ import annotations

import _thread
import ctypes
import os
import threading

from .attempts import attempt

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Callable

_PR_SET_NAME = 15


class OwnThread:
    """A thread that `threading.enumerate` does not list.

    Jobs wait for all that it lists, count them before they fork, or trace them. Nothing in such a
    thread may ask for `threading.current_thread`, which would list it for good.
    """

    def __init__(self, target: Callable[[], object], name: str) -> None:
        """Prepare it; what ``target`` raises is dropped."""
        self._target, self._name = target, name
        self._owner = 0
        self._ended = _thread.allocate_lock()

    def start(self) -> None:
        """Start it; raises RuntimeError where no thread can start."""
        self._owner = os.getpid()
        self._ended.acquire()
        try:
            _thread.start_new_thread(self._run, ())
        except BaseException:
            self._ended.release()
            raise

    def is_alive(self) -> bool:
        """Return whether it was started, and runs; never in a forked child."""
        return self._owner == os.getpid() and self._ended.locked()

    def join(self, timeout_s: float) -> None:
        """Wait for its end, for so long at most."""
        if self.is_alive() and self._ended.acquire(timeout=timeout_s):
            self._ended.release()

    def _run(self) -> None:
        try:
            attempt(lambda: name_thread(self._name))
            self._target()
        except BaseException:  # it would be printed into the job's log
            return
        finally:
            self._ended.release()


def name_thread(name: str) -> None:
    """Name this thread in the kernel, so that ``top -H`` tells whose it is.

    Not the main thread, whose name is that of the process: gevent runs our function there.
    """
    if threading.get_native_id() != os.getpid():
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def is_main() -> bool:
    """Return whether this is the main thread; lists no thread that is not listed."""
    return threading.get_ident() == threading.main_thread().ident
