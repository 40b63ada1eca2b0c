"""What nodes say to each other, and the connection on which they do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

_PIECE_BYTES = 1 << 16
_MOST_PIECES = 1024
_SEND_S = 2.0
# A host that lost power sends nothing: its kernel is asked, and given up after a minute.
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
_ENDED = "its `whystuck run` has ended"


class Word(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node says to the first one.

    Attributes:
        rank: Which of the nodes it is.
        node: Its name.
        label: What it talks about; empty for a greeting.
        text: What it has to say.
        out: Why it leaves the job, where it does.
        key: Tells the process that speaks from others that say to be this node.
        job: The first node to which it has spoken before, by what that calls itself.
    """

    rank: int
    node: str = ""
    label: str = ""
    text: str = ""
    out: str = ""
    key: str = ""
    job: str = ""


class Left(msgspec.Struct, frozen=True):
    """A node that is out of the job; ``text`` is what it has said at its end."""

    node: str = ""
    reason: str = _ENDED
    text: str = ""


class Heard(msgspec.Struct, frozen=True):
    """What the first node has heard, and tells all.

    Attributes:
        label: What it was about.
        told: The texts by node rank.
        left: The nodes that are out, and have not said anything of this.
        missing: Those that are waited for in vain.
        problem: What kept this node from hearing others.
        job: What the first node calls itself, where this is no more than its greeting.
    """

    label: str = ""
    told: dict[int, str] = {}
    left: dict[int, Left] = {}
    missing: tuple[int, ...] = ()
    problem: str = ""
    job: str = ""


@dataclass
class Peer:
    """A connection; it is nobody's while its rank is below 0."""

    end: socket.socket
    data: bytearray = field(default_factory=bytearray)
    rank: int = -1
    node: str = ""
    is_closed: bool = False

    def read_lines(self, max_bytes: int) -> Iterator[bytes]:
        """Yield lines that have come, none after ``is_closed`` was set; that is so at the end.

        Of who never stops talking it is no more than some: others wait.
        """
        for _ in range(_MOST_PIECES):
            if self.is_closed:
                return
            try:
                piece = self.end.recv(_PIECE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                piece = b""
            self.data += piece
            lines: list[bytearray] = []
            if b"\n" in piece:
                *lines, self.data = self.data.split(b"\n")
            is_over = not piece or len(self.data) > max_bytes
            for line in lines:
                if not self.is_closed:
                    yield bytes(line)
            self.is_closed |= is_over

    def send(self, line: bytes) -> bool:
        """Send a line, which its kernel should take at once."""
        try:
            self.end.settimeout(_SEND_S)
            self.end.sendall(line + b"\n", socket.MSG_NOSIGNAL)
            self.end.settimeout(0)
        except OSError:
            self.is_closed = True
        return not self.is_closed

    def close(self) -> None:
        """Close it."""
        self.is_closed = True
        with suppress(OSError):
            self.end.close()


def choose_port(port: int) -> int:
    """Return the port at which nodes talk: the one before that at which they meet for checks."""
    return port - 1 if port > 1 else port + 1


def keep_alive(end: socket.socket) -> None:
    """Have the kernel see to it that a host which is gone is noticed."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
