"""The way out of a rank: a last dump, and a moment for a look around when it fails.

``sys.excepthook`` sees only what nobody catches. A job that catches its error and ends itself with
a code comes this way, as do the processes of ``torch.multiprocessing.spawn``.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading

from . import dumps, files, wire
from .exceptions import HOLD_S, describe

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Callable

    from .identity import Identity


class Leaving:
    """What is done when this process ends by ``sys.exit``, ``os._exit`` or at its last line."""

    def __init__(self, identity: Identity, stop: Callable[[], None]) -> None:
        self._identity = identity
        self._stop = stop
        self._owner = os.getpid()
        self._has_failed = False

    def watch(self) -> None:
        """Stand in the ways out; what a forked child does is not ours."""
        atexit.register(self._leave)
        self._watch_sys_exit()
        self._watch_os_exit()

    def _watch_sys_exit(self) -> None:
        original = sys.exit

        def sys_exit(status: object = None, /) -> None:
            try:
                self._note(status)
            except Exception:  # the job ends as it wants to
                original(status)  # type: ignore[arg-type] # anything is allowed
            original(status)  # type: ignore[arg-type] # as above

        sys.exit = sys_exit  # type: ignore[assignment] # NoReturn cannot be told for both

    def _watch_os_exit(self) -> None:
        original = os._exit

        def os_exit(status: int) -> None:
            try:
                if os.getpid() == self._owner:
                    self._note(status)
                    dumps.dump_recorder(files.path_of("final"))
            except Exception:  # the job ends as it wants to
                original(status)
            original(status)

        os._exit = os_exit  # type: ignore[assignment] # NoReturn, as above

    def _note(self, status: object) -> None:
        """Note a failure, with the exception that is being handled, if any.

        In another thread than the main one ``sys.exit`` ends that thread only.
        """
        if status in (None, 0) or threading.current_thread() is not threading.main_thread():
            return
        if os.getpid() != self._owner:
            return
        self._has_failed = True
        value = sys.exc_info()[1]
        path = files.path_of("exception")
        if isinstance(value, Exception) and not os.path.exists(path):
            files.write_json(path, describe(value, value.__traceback__))

    def _leave(self) -> None:
        try:
            if os.getpid() != self._owner:
                return
            try:
                dumps.dump_recorder(files.path_of("final"))
                if self._has_failed:
                    # As for an exception that nobody catches: the launcher ends the others soon.
                    wire.tell("exception", self._identity.rank, reply_timeout_s=HOLD_S)
            finally:
                # Whatever became of the dump: a thread that is left running ends the process.
                self._stop()
        except Exception:  # the process is on its way out
            return
