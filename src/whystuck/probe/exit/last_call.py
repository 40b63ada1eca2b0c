"""The call that ends this process: `sys.exit`, `quit`, `os._exit`, or a signal to itself.

None of these leaves a traceback. A bare ``raise SystemExit`` goes through no function that could be
watched: of that one nothing is known.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from .. import files, progress
from ..calling.interrupts import let_through
from ..calling.unseen import HIDDEN_FILE, call_before, replace_builtin, show_alone
from ..threads import is_main

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable

_MAX_FRAMES = 100
_MAX_STATUS = 1000
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class LastCall:
    """The newest call that ends the process, kept until it is known that it does."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._record: dict[str, object] | None = None
        self._steps = 0

    def watch(self) -> None:
        """Stand in front of the calls that nothing else of the probe watches."""
        self._watch_quitters()
        self._watch_signals()
        # Before `atexit`, Python waits for threads that are no daemons, which may be for ever.
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            _attempt(lambda: register(lambda: _attempt(self.keep)))

    def note(self, call: str, status: object) -> None:
        """Note a call and where it is made; nothing is written yet, as somebody may catch it."""
        if os.getpid() != self._owner:
            return
        self._steps = progress.COUNTS.optimizer_steps
        self._record = {
            "pid": self._owner,
            "call": call,
            "status": _describe_status(status),
            "is_main_thread": is_main(),
            "time_ns": time.time_ns(),
            "frames": _describe_frames(sys._getframe(1)),
        }

    def keep(self) -> None:
        """Write the record, unless training went on after the call."""
        if self._record is None or os.getpid() != self._owner:
            return
        if self._steps == progress.COUNTS.optimizer_steps:
            files.write_json(files.path_of("leaving"), self._record)

    def _watch_quitters(self) -> None:
        quitter: Any = type(getattr(sys.modules["builtins"], "quit", None))
        if quitter.__module__ != "_sitebuiltins":
            return  # somebody has put another one there, or there is no site
        quitter.__call__ = call_before(quitter.__call__, self._note_quit)

    def _note_quit(self, this: object, code: object = None) -> None:
        if is_main():
            self.note(str(getattr(this, "name", "quit")), code)

    def _watch_signals(self) -> None:
        # Handlers of signals look at the frame that they interrupt.
        replace_builtin(os, "kill", show_alone(os.kill, self._note_kill, 2))
        raise_signal = show_alone(signal.raise_signal, self._note_raise, 1)
        replace_builtin(signal, "raise_signal", raise_signal)

    def _note_kill(self, pid: int, signalnum: int, /) -> None:
        if pid == self._owner and signalnum:
            self._note_signal("os.kill", signalnum)

    def _note_raise(self, signalnum: int, /) -> None:
        self._note_signal("signal.raise_signal", signalnum)

    def _note_signal(self, call: str, number: int) -> None:
        """Write the record of a signal at once: nothing of this process may come after it.

        Raises ValueError for a number that is no signal.
        """
        if not _is_deadly(number) or _is_probe(sys._getframe()):
            return  # the latter repeats a signal that came from elsewhere
        before = self._record
        self.note(call, int(number))
        self.keep()
        self._record = before


def _is_probe(frame: FrameType | None) -> bool:
    """Return whether the probe itself makes the call that this module stands in front of."""
    while frame is not None and frame.f_code.co_filename in _BETWEEN:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_OURS)


# The files of what runs between the call and this.
_BETWEEN = (_is_probe.__code__.co_filename, HIDDEN_FILE)


def _describe_status(status: object) -> str:
    """Return the status as text; of an object of the job the type only, as its code is not ours."""
    if status is None or type(status) in (str, int, bool):
        return str(status)[:_MAX_STATUS]
    return type(status).__name__[:_MAX_STATUS]


def _is_deadly(number: int) -> bool:
    """Return whether a signal ends the process, as nobody handles it."""
    if number in (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGSTOP):
        return False
    if number == signal.SIGKILL:
        return True
    handler: Any = signal.getsignal(number)
    # Ours ends the process too, after a dump.
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return handler == signal.SIG_DFL or getattr(code, "co_filename", "").startswith(_OURS)


def _attempt(function: Callable[[], object]) -> None:
    try:
        function()
    except Exception as error:  # the job ends as it wants to
        let_through(error)
        return


def _describe_frames(frame: FrameType | None) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    while frame is not None and len(found) < _MAX_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):
            line = frame.f_lineno or 0
            found.append({"name": code.co_name, "filename": code.co_filename, "line": line})
        frame = frame.f_back
    return found
