"""Messages between the processes of ``whystuck run``: whole or not at all, and never waited for."""

from __future__ import annotations

import json
import math
import select
import socket
import time
from contextlib import suppress
from typing import Any, NoReturn

from whystuck.evidence.errors import StartError, UsageError

_MAX_MESSAGE_BYTES = 1 << 17
_TELL_S = 1.0


class Link:
    """One end of a pair. Sending never blocks: who does not listen misses the message."""

    def __init__(self, end: socket.socket) -> None:
        """Take one end of what :func:`make_pair` returned."""
        self._socket = end
        self._socket.settimeout(0)
        self.is_closed = False

    def fileno(self) -> int:
        """Return the descriptor, for a poll."""
        return self._socket.fileno()

    def send(self, kind: str, **fields: object) -> bool:
        """Send one message; return whether it was taken."""
        data = json.dumps({"kind": kind, **fields}).encode()
        try:
            return self._socket.send(data, socket.MSG_NOSIGNAL) == len(data)
        except OSError:
            return False

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next message; None when none came in time, or the other end is gone."""
        if self.is_closed or not wait_readable(self.fileno(), timeout_s):
            return None
        try:
            data = self._socket.recv(_MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.is_closed = True
            return None
        message: dict[str, Any] = json.loads(data)
        return message

    def close(self) -> None:
        """Close this end."""
        self.is_closed = True
        with suppress(OSError):
            self._socket.close()


class EndProgress:
    """Says that the end of a job goes on, whose caller waits for its exit code."""

    def __init__(self, link: Link) -> None:
        """Say nothing before `begin`: nobody listens while the job runs."""
        self._link = link
        self._due_s = math.inf

    def begin(self, late: list[int]) -> None:
        """Take it that the command has ended; ``late`` are threads that may hang."""
        self._due_s = 0.0
        self._link.send("working", late=late)

    def tell(self, *_: object) -> None:
        """Say that one thing more is done, once a second at most; called from any thread."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + _TELL_S
            self._link.send("working")


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Return two ends that keep the borders of messages."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def wait_readable(fd: int, timeout_s: float) -> bool:
    """Return whether something can be read within ``timeout_s``."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(int(timeout_s * 1000)))


def refuse(message: dict[str, Any]) -> NoReturn:
    """Raise what the watcher has said; its code is that of a wrong option, or of no start."""
    kind = UsageError if message["is_usage"] else StartError
    raise kind(str(message["text"]), hint=str(message["hint"]))


def receive_byte(control: socket.socket) -> bytes:
    """Return the next byte, none when there is none, or the other end is gone."""
    with suppress(OSError):
        return control.recv(1)
    return b""
