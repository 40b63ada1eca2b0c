"""A process of our group that blocks all signals, and can say which of them the group has got.

The kernel tells who sent a signal, and not whether it went to one process or to all of a group.
It also keeps the command and the front stopped and continued together: SIGSTOP cannot be handled,
so a front that got it alone could not pass it on.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from contextlib import suppress

from whystuck.collect.processes.proc_files import read_state, read_status
from whystuck.launch import descriptors
from whystuck.launch.link import make_pair, wait_readable
from whystuck.launch.processes.process_state import Patience

# While one of both is stopped, and else: a look costs some 30 us of CPU.
_LOOK_S = 0.05
_FRONT_LOOK_S = 0.25
# One that was stopped, or ended, is done without.
_SILENT_S = 5.0
_HAS_GOT, _WATCH, _STOPS, _WOKE = range(4)
_QUESTION = struct.Struct("<II")
"""What is asked, and the number of a signal or the pid of the command."""
_STOPPED = frozenset("Tt")
_STOP_BIT = 1 << (signal.SIGSTOP - 1)


class Sentinel:
    """The sentinel as the front sees it. Without one, a signal for the group may arrive twice."""

    def __init__(self) -> None:
        """Start nothing."""
        self.pid = -1
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Fork it; signals must be blocked already."""
        ours, its = make_pair()
        front = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:
            ours.close()
            its.close()
            return
        if self.pid == 0:
            try:
                keep = its.fileno()
                descriptors.close_all([fd for fd in descriptors.list_open() if fd != keep])
                _Watch(keep, front).run()
            finally:
                os._exit(0)
        its.close()
        self._socket = ours

    def has_got(self, number: int) -> bool:
        """Return whether a signal went to our whole group, and so to the command as well."""
        return self._ask(_HAS_GOT, number) == b"y"

    def watch(self, command: int) -> None:
        """Stop the command from now on when the front is stopped."""
        self._ask(_WATCH, command)

    def stops(self) -> None:
        """Continue the front, which is about to stop as the command has, when that goes on."""
        self._ask(_STOPS, 0)

    def woke(self) -> None:
        """Take it that the front goes on after `stops`."""
        self._ask(_WOKE, 0)

    def close(self) -> None:
        """End it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, what: int, number: int) -> bytes:
        if self._socket is None:
            return b""
        patience = Patience(_SILENT_S, _SILENT_S)
        try:
            self._socket.send(_QUESTION.pack(what, number), socket.MSG_NOSIGNAL)
            while not wait_readable(self._socket.fileno(), _LOOK_S):
                if patience.is_over():
                    self.close()  # its answer would be taken for that to the next question
                    return b""
            return self._socket.recv(1)
        except OSError:
            return b""


class _Watch:
    """The process itself.

    The front is our parent and the command its child: while the front is stopped, nobody reaps the
    command, and its pid is that of no other process.
    """

    def __init__(self, fd: int, front: int) -> None:
        self._fd = fd
        self._front = front
        self._command = 0
        # The front said that it stops.
        self._follows = False
        # How often the front had run when it was seen stopped: while it is, that stays the same.
        self._stopped_at: int | None = None
        # What came of that stop: we stopped the command, and saw it stopped.
        self._has_asked = self._has_seen = False
        # Looks at which it was neither stopped nor about to stop.
        self._looks = 0

    def run(self) -> None:
        """Answer questions until the front has gone."""
        # Not select, which knows no descriptor above 1023: our caller may have left us many.
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        while True:
            timeout_s = _LOOK_S if self._follows or self._stopped_at is not None else _FRONT_LOOK_S
            if poller.poll(timeout_s * 1000 if self._command else None):
                question = os.read(self._fd, _QUESTION.size)
                if not question:
                    return
                os.write(self._fd, self._answer(*_QUESTION.unpack(question)))
            if self._command:
                self._look()

    def _answer(self, what: int, number: int) -> bytes:
        if what == _HAS_GOT:
            return b"n" if signal.sigtimedwait({number}, 0) is None else b"y"
        if what == _WATCH:
            self._command = number
        else:
            self._follows = what == _STOPS
        return b"y"

    def _look(self) -> None:
        is_stopped = self._is_front_stopped()
        runs = self._count_runs() if is_stopped else None
        if self._stopped_at not in (None, runs):
            # It was continued, and perhaps stopped anew, which is another stop.
            self._follows = self._has_asked = self._has_seen = False
        self._stopped_at = runs
        if not is_stopped:
            return
        if read_state(self._command) in _STOPPED:
            self._has_seen = True
        elif self._follows or self._has_seen or (self._has_asked and self._was_continued()):
            _send(self._front, signal.SIGCONT)
        elif not self._has_asked:
            self._has_asked, self._looks = True, 0
            self._stop_command()

    def _was_continued(self) -> bool:
        """Return whether the command stopped and went on unseen; its stop may take a moment."""
        status = read_status(self._command)
        pending = int(status.get("ShdPnd", "0"), 16) | int(status.get("SigPnd", "0"), 16)
        self._looks = 0 if pending & _STOP_BIT else self._looks + 1
        return self._looks > 1

    def _stop_command(self) -> None:
        _send(self._command, signal.SIGSTOP)
        if not self._is_front_stopped():
            # Continued meanwhile, perhaps with the group: then the command was before it stopped.
            _send(self._command, signal.SIGCONT)

    def _count_runs(self) -> int:
        status = read_status(self._front)
        names = ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
        return sum(int(status.get(name, "0")) for name in names)

    def _is_front_stopped(self) -> bool:
        return read_state(self._front) == "T"


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
