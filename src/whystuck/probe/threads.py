"""Threads of the probe, which the job does not meet among its own, and their names."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import ctypes
import os
import threading

from .calling.attempts import attempt
from .handlers.numbers import dump_signal, stacks_signal

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Callable

_PR_SET_NAME = 15


# What a thread does itself; kept back, these end the process without a word.
_FAULTS = tuple(
    getattr(_signal, name)
    for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")
)


class KeepsSignalsBack:
    """Around the start of a thread, which keeps back for good what its starter does.

    A signal for the process goes to any thread that takes it. What those of the job keep back is to
    wait until they ask for it, as by `sigwait`; our own may have been there before they did so.
    Signals of whystuck are taken, as all threads of the job may keep them back.
    """

    def __enter__(self) -> None:
        """Keep signals back."""
        self._before = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
        taken = {*_FAULTS, dump_signal(), stacks_signal()}
        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - taken)
        except BaseException:  # of a handler of the job
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        """Take them again."""
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._before)


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
        ident = 0
        try:
            with KeepsSignalsBack():
                ident = _thread.start_new_thread(self._run, ())
        finally:
            if not ident:
                self._release()

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
            self._release()

    def _release(self) -> None:
        try:
            self._ended.release()
        except RuntimeError:  # a handler of the job has raised an error in `start`, which did so
            return


def name_thread(name: str) -> None:
    """Name this thread in the kernel, so that ``top -H`` tells whose it is.

    Not the main thread, whose name is that of the process: gevent runs our function there.
    """
    if threading.get_native_id() != os.getpid():
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def is_main() -> bool:
    """Return whether this is the main thread; lists no thread that is not listed."""
    return threading.get_ident() == threading.main_thread().ident
