"""Uncaught exceptions: written down, and held until the supervisor has looked around."""

from __future__ import annotations

import _thread
import os
import sys
import time

from .. import files, wire
from ..calling.unseen import StandIn, stand_in
from ..identity import Identity

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    import threading
    from types import FrameType, TracebackType
    from typing import Any

_HOLD_S = 8.0
_SLACK_S = 30.0
# Errors of threads: the first ones, and the last ones.
_FIRST_ERRORS = 8
_LAST_ERRORS = 8
# So many are written at once; more of them, once a second: a write takes about a millisecond.
_MOST_AT_ONCE = 100
_EVERY_S = 1.0
HOLD_ENV = "WHYSTUCK_HOLD_S"
# What runs below all else in a program, given as a file or with `-m`.
_PROGRAMS = ("<module>", "_run_module_as_main")
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def read_hold_s() -> float:
    """Return how long the supervisor may keep us: it answers before that, or is gone."""
    try:
        return max(_HOLD_S, float(os.environ[HOLD_ENV]) + _SLACK_S)
    except (KeyError, ValueError):
        return _HOLD_S


class ExceptionKeeper:
    """A link in the chain of ``sys.excepthook`` that records, holds, and passes on."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._owner = os.getpid()
        self._seen: int | None = None
        self._thread_errors: list[dict[str, object]] = []
        self._writes = 0
        self._due_s = 0.0
        self._lock = _thread.allocate_lock()
        # Errors of threads that are on their way through hooks, of which several may be ours.
        self._on_their_way: set[int] = set()

    def watch(self) -> None:
        """Put us first in the chains, again when somebody else has taken the place."""
        self._watch_main()
        self._watch_threads()

    def _watch_threads(self) -> None:
        """Keep what ends other threads: their process lives on, and may wait for them for ever."""
        module = sys.modules.get("threading")
        # What is there becomes the hook when `threading` is imported, which takes milliseconds.
        places = [(_thread, "_excepthook")]
        if module is not None:
            places = [(module, "excepthook"), (module, "__excepthook__"), *places]
        current: Any = getattr(*places[0], None)
        if current is None or isinstance(current, StandIn):
            return

        def hook(args: threading.ExceptHookArgs, /) -> None:
            key = id(args.exc_value)
            is_first = key not in self._on_their_way
            self._on_their_way.add(key)
            try:
                if is_first:
                    self._try_to_keep(args.exc_value, args.exc_traceback)
                current(args)
            finally:
                if is_first:
                    self._on_their_way.discard(key)

        _replace(current, stand_in(current, hook), places)

    def _try_to_keep(self, value: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._keep_thread_error(value, trace)
        except BaseException:  # the thread's own report of its error goes on
            return

    def _keep_thread_error(self, value: BaseException | None, trace: TracebackType | None) -> None:
        if value is None or isinstance(value, SystemExit):
            return
        if os.getpid() != self._owner or files.why_off():
            return
        if self._writes >= _MOST_AT_ONCE and time.monotonic() < self._due_s:
            return
        from .description import describe

        record = describe(value, trace)
        with self._lock:
            self._writes, self._due_s = self._writes + 1, time.monotonic() + _EVERY_S
            kept = self._thread_errors
            kept.append(record)
            if len(kept) > _FIRST_ERRORS + _LAST_ERRORS:
                del kept[_FIRST_ERRORS]
            files.write_json(files.path_of("thread-errors"), {"errors": kept})

    def _watch_main(self) -> None:
        places = [(sys, "excepthook"), (sys, "__excepthook__")]
        current: Any = getattr(*places[0], None)
        if current is None or isinstance(current, StandIn):
            return

        def hook(kind: type, value: BaseException, trace: TracebackType | None) -> None:
            try:
                trace = leave_out_ours(value, trace)
                if not _is_main():
                    self._keep_thread_error(value, trace)
                elif not _goes_on(sys._getframe()):
                    self._keep(value, trace)
            except BaseException:  # a second Ctrl-C, too: the job's own report of its error goes on
                current(kind, value, trace)
                return
            current(kind, value, trace)

        _replace(current, stand_in(current, hook), places)

    def _keep(self, value: BaseException, trace: TracebackType | None) -> None:
        if self._seen == id(value) or isinstance(value, KeyboardInterrupt):
            return
        if os.getpid() != self._owner or files.why_off():
            return  # a forked child is no rank
        from .description import describe

        self._seen = id(value)
        record = describe(value, trace)
        files.write_json(files.path_of("exception"), record)
        # The supervisor answers when it has looked at all ranks: the launcher ends the others
        # within a tenth of a second after this one is gone.
        wire.tell("exception", self._identity.rank, reply_timeout_s=read_hold_s())


def _is_main() -> bool:
    threading = sys.modules.get("threading")
    return threading is None or threading.main_thread().ident == _thread.get_ident()


def _goes_on(frame: FrameType) -> bool:
    """Return whether the program goes on after an error: it has called the hook itself.

    Python calls it when the program has ended: no frame is left then but those of hooks.
    """
    if hasattr(sys, "ps1"):
        return True  # it was typed at a prompt, where the next line is waited for
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name in _PROGRAMS


def _replace(original: object, made: object, places: list[tuple[Any, str]]) -> None:
    """Put something in the place of a hook, and where Python keeps its own one."""
    for place, name in places:
        if getattr(place, name, None) is original:
            setattr(place, name, made)


def leave_out_ours(
    value: BaseException | None, trace: TracebackType | None
) -> TracebackType | None:
    """Take our functions out of the tracebacks of an error, and of those that it came from.

    Returns:
        The traceback to be printed for ``trace``, which is that of the error in most cases.
    """
    is_own = value is not None and trace is value.__traceback__
    left: list[BaseException | None] = [value]
    seen: set[int] = set()
    while left:
        error = left.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            error.__traceback__ = _without_ours(error.__traceback__)
            left += [error.__cause__, error.__context__]
    return value.__traceback__ if value is not None and is_own else _without_ours(trace)


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Take entries out of a traceback; one that is ours alone stays as it is."""
    kept: list[TracebackType] = []
    at = trace
    while at is not None:
        if not at.tb_frame.f_code.co_filename.startswith(_OURS):
            kept.append(at)
        at = at.tb_next
    if not kept:
        return trace
    for place, one in enumerate(kept):
        one.tb_next = kept[place + 1] if place + 1 < len(kept) else None
    return kept[0]
