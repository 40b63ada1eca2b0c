"""The way out of a rank: a last dump, and a moment for a look around when it fails.

``sys.excepthook`` sees only what nobody catches. A job that catches its error and ends itself with
a code comes this way, as do the processes of ``torch.multiprocessing.spawn``.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

from .. import files, wire
from ..calling.unseen import replace_builtin, show_calls
from ..recorder import coalescing, dumps
from ..threads import is_main
from . import crash, sys_exit
from .description import describe
from .exceptions import read_hold_s
from .last_call import LastCall

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Callable

    from ..identity import Identity


# What runs between ``sys.exit`` and the end of the interpreter takes less than this.
FRESH_S = 10.0
# ``os._exit`` waits for nobody: a recorder whose lock is held must not change that.
_DUMP_S = 2.0


class Leaving:
    """What is done when this process ends by ``sys.exit``, ``os._exit`` or at its last line."""

    def __init__(self, identity: Identity, stop: Callable[[], None]) -> None:
        self._identity = identity
        self._stop = stop
        self._owner = os.getpid()
        self._failed_at_s = -FRESH_S
        self._record: dict[str, object] | None = None
        self._last_call = LastCall()

    def watch(self) -> None:
        """Stand in the ways out; what a forked child does is not ours."""
        atexit.register(self._leave)
        sys_exit.stand_before()
        sys_exit.SEEN_BY[:] = [self._note_sys_exit]
        self._watch_os_exit()
        self._last_call.watch()

    def _note_sys_exit(self, status: object = None, /) -> None:
        if is_main():
            self._last_call.note("sys.exit", status)
        self._note(status)

    def _watch_os_exit(self) -> None:
        replace_builtin(os, "_exit", show_calls(os._exit, self._before_os_exit))

    def _before_os_exit(self, status: int) -> None:
        try:
            if os.getpid() == self._owner and not files.why_off():
                self._last_call.note("os._exit", status)
                self._last_call.keep()
                self._note(status)
                self._keep_record()
                _keep_skipped()
                dumps.dump_recorder_within(files.path_of("final"), _DUMP_S)
                crash.wait_for_dying()
        except BaseException:  # Ctrl-C, too: the job ends as it wants to
            return

    def _note(self, status: object) -> None:
        """Note a failure, with the exception that is being handled, if any.

        In another thread than the main one ``sys.exit`` ends that thread only.
        """
        if status in (None, 0) or not is_main():
            return
        if os.getpid() != self._owner:
            return
        now_s = time.monotonic()
        if now_s - self._failed_at_s >= FRESH_S:
            # Of an exit that somebody caught. One just before belongs to this one: a spawned
            # process raises SystemExit, and its bootstrap calls ``sys.exit`` once more.
            self._record = None
        self._failed_at_s = now_s
        value = sys.exc_info()[1]
        if isinstance(value, Exception):
            self._record = describe(value, value.__traceback__)

    def _keep_record(self) -> None:
        path = files.path_of("exception")
        if self._record is not None and not os.path.exists(path):
            files.write_json(path, self._record)

    def _leave(self) -> None:
        try:
            if os.getpid() != self._owner:
                return
            _keep_skipped()
            self._last_call.keep()
            try:
                if files.why_off():
                    return
                dumps.dump_recorder(files.path_of("final"))
                # Somebody may have caught the SystemExit long ago, and the job went on in health.
                if time.monotonic() - self._failed_at_s < FRESH_S:
                    self._keep_record()
                    # As for an exception that nobody catches: the launcher ends the others soon.
                    wire.tell("exception", self._identity.rank, reply_timeout_s=read_hold_s())
            finally:
                # Whatever became of the dump: a thread that is left running ends the process.
                self._stop()
                _end_crashes()
        except Exception:  # the process is on its way out
            return


def _keep_skipped() -> None:
    """Write what came since the last beat; its failure must not cost the dump."""
    try:
        coalescing.WRITER.write_if_changed()
    except Exception:  # the process is on its way out
        return


def _end_crashes() -> None:
    try:
        crash.wait_for_dying()
    finally:
        crash.let_go()
