"""A process of our group that blocks all signals, and can say which of them the group has got.

The kernel tells who sent a signal, and not whether it went to one process or to all of a group.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from contextlib import suppress

from whystuck.launch import descriptors
from whystuck.launch.link import make_pair
from whystuck.launch.process_state import read_state

_LOOK_S = 0.05
_QUESTION = struct.Struct("<II")
"""Number of a signal and 0, or 0 and the pid of a process that is stopped."""


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
                _watch(keep, front)
            finally:
                os._exit(0)
        its.close()
        self._socket = ours

    def has_got(self, number: int) -> bool:
        """Return whether a signal went to our whole group, and so to the command as well."""
        return self._ask(number, 0) == b"y"

    def wake_after(self, pid: int) -> None:
        """Continue the front, which is about to stop, when a stopped process goes on."""
        self._ask(0, pid)

    def close(self) -> None:
        """End it."""
        if self._socket is not None:
            self._socket.close()

    def _ask(self, number: int, pid: int) -> bytes:
        if self._socket is None:
            return b""
        try:
            self._socket.send(_QUESTION.pack(number, pid), socket.MSG_NOSIGNAL)
            return self._socket.recv(1)
        except OSError:
            return b""


def _watch(fd: int, front: int) -> None:
    """Answer questions until the front has gone."""
    stopped = 0
    while True:
        if stopped and read_state(stopped) not in {"T", "t"}:
            stopped = 0
            with suppress(ProcessLookupError):
                os.kill(front, signal.SIGCONT)
        if not select.select([fd], [], [], _LOOK_S if stopped else None)[0]:
            continue
        question = os.read(fd, _QUESTION.size)
        if not question:
            return
        number, pid = _QUESTION.unpack(question)
        came = bool(number) and signal.sigtimedwait({number}, 0) is not None
        stopped = pid or stopped
        os.write(fd, b"y" if came else b"n")
