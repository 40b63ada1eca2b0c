"""Who may hold a connection to a port, how many, and for how long.

All ports of the agent take their connections from here. What a client has to show to be let in is
the part of each port; until then it is a stranger, who has little time and gives way to others.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from whystuck.agent.rpc.peers import ask_loopback_uid

_LOGGER = logging.getLogger(__name__)
_BACKLOG = 512
_RETRY_S, _YIELD_S = 0.2, 0.01
_ACCEPTED_AT_ONCE = 64
_KERNEL_BYTES = 16 << 10
_STREAM_BYTES = 16 << 10
_PORTS = range(1 << 16)
_LOOPBACK = "loopback"
_IPV6_BITS = 64
"""A machine has a whole network of this many bits, and may take any address in it."""


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections there may be, and how long one may be that of a stranger.

    ``stranger_s`` counts from the accept, with the handshake of TLS, and is not renewed by what
    arrives. An address is a machine: a network of 64 bits of IPv6, and all of loopback, where each
    user counts as a machine.
    """

    total: int = 512
    per_address: int = 128
    stranger_s: float = 10.0


class ConnectionCounts(msgspec.Struct, kw_only=True):
    """What happened since the start; each only grows, but ``open``."""

    open: int = 0
    accepted: int = 0
    timed_out: int = 0
    crowded_out: int = 0


class Guest:
    """One connection; it is a stranger's until `let_in`."""

    def __init__(self, connection: socket.socket, machine: str) -> None:
        self.socket = connection
        self.machine = machine
        self.is_stranger = True
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def let_in(self) -> None:
        """Take its deadline away, and never close it for others: from now on the port looks."""
        self.is_stranger = False
        if self.timer:
            self.timer.cancel()

    def send_away(self) -> None:
        """End its task, which closes the connection."""
        self.let_in()
        if self.task:
            self.task.cancel()


Serve = Callable[[Guest], Awaitable[None]]


class Connections:
    """The connections of one port, which may have several listening sockets.

    Above a limit the stranger that has been here the longest goes: of the same machine above the
    limit of one address, of the machine with the most strangers above that of all. So who shows
    in time that it may come in gets in, however many others hold a connection. A new one is
    closed at once only when all others were let in.
    """

    def __init__(self, limits: ConnectionLimits, counts: ConnectionCounts | None = None) -> None:
        self.counts = counts or ConnectionCounts()
        self._limits = limits
        self._guests: dict[Guest, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: dict[socket.socket, Serve] = {}

    def listen(self, listener: socket.socket, serve: Serve) -> None:
        """Accept on a listening socket, which is ours from now on; each connection is a task."""
        listener.setblocking(False)  # noqa: FBT003 - its only parameter
        self._listeners[listener] = serve
        self._resume(listener)

    async def close(self, timeout_s: float = 1.0) -> None:
        """Stop to listen, and end all connections."""
        listeners = list(self._listeners)
        self._listeners.clear()
        for listener in listeners:
            asyncio.get_running_loop().remove_reader(listener)
        close_all(listeners)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Take some of those who wait; the loop comes back for the rest, after all others."""
        # Not by `sock_accept`: when its task is cancelled, it may lose a connection, which hangs.
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it has hung up already
            except OSError as error:
                self._pause(listener, error)
                return
            connection.setblocking(False)  # noqa: FBT003 - its only parameter
            # What a stranger has us keep is bounded: a read gives what the kernel holds.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _KERNEL_BYTES)
            guest = Guest(connection, _name_user(connection, address))
            self._enter(guest, self._listeners[listener])

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """Give a descriptor back where none is left, and do not try all the time."""
        has_gone = self._send_away(list(self._guests))
        if not has_gone:
            _LOGGER.warning("a connection could not be accepted: %s", error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(_YIELD_S if has_gone else _RETRY_S, self._resume, listener)

    def _enter(self, guest: Guest, serve: Serve) -> None:
        self.counts.accepted += 1
        same = [one for one in self._guests if one.machine == guest.machine]
        full = len(self._guests) >= self._limits.total
        crowd = same if len(same) >= self._limits.per_address else list(self._guests) * full
        if crowd and not self._send_away(crowd):
            self.counts.crowded_out += 1
            guest.socket.close()
            return
        self._guests[guest] = None
        self.counts.open += 1
        loop = asyncio.get_running_loop()
        guest.timer = loop.call_later(self._limits.stranger_s, self._expire, guest)
        guest.task = loop.create_task(self._run(guest, serve))
        self._tasks.add(guest.task)
        guest.task.add_done_callback(lambda task: self._end(guest, task))

    def _send_away(self, crowd: list[Guest]) -> bool:
        """Close the oldest stranger of the machine that has the most of them; whether one was."""
        strangers = [one for one in crowd if one.is_stranger]
        if not strangers:
            return False
        [(machine, _)] = Counter(one.machine for one in strangers).most_common(1)
        oldest = next(one for one in strangers if one.machine == machine)
        self.counts.crowded_out += 1
        self._forget(oldest)
        oldest.send_away()
        return True

    def _expire(self, guest: Guest) -> None:
        self.counts.timed_out += 1
        self._forget(guest)
        guest.send_away()

    def _forget(self, guest: Guest) -> None:
        if guest in self._guests:
            del self._guests[guest]
            self.counts.open -= 1

    async def _run(self, guest: Guest, serve: Serve) -> None:
        try:
            await serve(guest)
        except asyncio.CancelledError:
            pass  # sent away, or the port closes
        except Exception:
            _LOGGER.exception("a connection failed")

    def _end(self, guest: Guest, task: asyncio.Task[None]) -> None:
        """Clean up; a task that was cancelled before its first step comes here, too."""
        self._tasks.discard(task)
        guest.let_in()
        self._forget(guest)
        guest.socket.close()


def _name_user(connection: socket.socket, address: Any) -> str:  # noqa: ANN401 - as below
    """Return whose a connection is: a machine, or of this one the user, where that can be told."""
    machine = name_machine(address)
    if machine != _LOOPBACK or connection.family == socket.AF_UNIX:
        return machine
    with suppress(OSError, ValueError):
        uid = ask_loopback_uid(address[:2], connection.getsockname()[:2])
        return machine if uid is None else f"{machine} {uid}"
    return machine


def name_machine(address: Any) -> str:  # noqa: ANN401 - each family of sockets has its own
    """Return what stands for the machine of a peer, by its address as `accept` gives it."""
    if not isinstance(address, tuple):
        return _LOOPBACK  # a unix socket
    try:
        found = ipaddress.ip_address(str(address[0]).partition("%")[0])
    except ValueError:
        return str(address[0])
    found = getattr(found, "ipv4_mapped", None) or found
    if found.is_loopback:
        return _LOOPBACK
    if found.version == 4:  # noqa: PLR2004 - versions of IP
        return str(found)
    return str(ipaddress.ip_network((found.packed, _IPV6_BITS), strict=False))


def bind(address: str, port: int) -> list[socket.socket]:
    """Return listening sockets for all that ``address`` stands for; ``port`` 0 takes a free one.

    Raises:
        OSError: The port is taken, or the address is not of this machine.
        OverflowError: There is no such port.
    """
    if port not in _PORTS:
        raise OverflowError(f"a port is from 0 to {_PORTS[-1]}")
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, _, _, _, where in dict.fromkeys(found):
            # One of a name with several addresses takes a free port, the others have the same.
            own_port = port or (listeners[0].getsockname()[1] if listeners else 0)
            place = (where[0], own_port, *where[2:])
            listeners.append(socket.create_server(place, family=family, backlog=_BACKLOG))
    except BaseException:
        for one in listeners:
            one.close()
        raise
    return listeners


async def open_streams(
    guest: Guest,
    tls: Any | None = None,  # noqa: ANN401 - ssl is imported only where it is used
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return streams of a connection, after the handshake of TLS where ``tls`` is a context.

    Raises:
        OSError: The handshake failed, or the other side has hung up.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_STREAM_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    # The handshake of a stranger ends with its deadline: that of asyncio is 60 s.
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, guest.socket, ssl=tls)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def close_all(listeners: list[socket.socket]) -> None:
    """Close sockets on which nobody listens yet."""
    for one in listeners:
        with suppress(OSError):
            one.close()
