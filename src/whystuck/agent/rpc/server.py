"""Listens for calls on unix and TCP sockets, one request a connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whystuck.agent.connections import (
    ConnectionCounts,
    ConnectionLimits,
    Connections,
    Guest,
    Serve,
    open_streams,
)
from whystuck.agent.interfaces import RpcCall
from whystuck.agent.rpc.auth import RpcAuth
from whystuck.agent.rpc.binding import bind_loopback, bind_path, bind_tcp
from whystuck.agent.rpc.frames import (
    HEADER_BYTES,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    FrameError,
    pack_frame,
    parse_length,
    parse_object,
)
from whystuck.agent.rpc.peers import (
    ask_loopback_uid,
    is_loopback,
    read_loopback_uid,
    read_unix_uid,
    trusted_uids,
)
from whystuck.evidence.errors import UsageError

_LOGGER = logging.getLogger(__name__)
_LARGE_BYTES, _LARGE_AT_ONCE = 64 << 10, 8


@dataclass(frozen=True)
class RpcLimits:
    """What one connection, and all of them together, may take.

    A client has ``read_s`` for the handshake of TLS and its whole request, and ``write_s`` to take
    the reply; a call has ``call_s``. `Connections` tells what ``connections`` and ``per_address``
    are.
    """

    connections: int = 512
    per_address: int = 256
    read_s: float = 10.0
    call_s: float = 120.0
    write_s: float = 60.0


class RpcCounters(ConnectionCounts, kw_only=True):
    """What happened since the start; each only grows, but ``open``."""

    answered: int = 0
    unanswered: int = 0
    malformed: int = 0
    refused: int = 0
    failed: int = 0


class RpcServer:
    """Serves ``calls``, each under the name that requests have in ``fn``.

    A request that is malformed, unknown or not allowed closes its connection without a reply, as
    dynolog does. Clients cannot hold up each other: each is a task of its own with limits.
    """

    def __init__(self, calls: Mapping[str, RpcCall], limits: RpcLimits | None = None) -> None:
        self.counters = RpcCounters()
        self.ports: list[int] = []
        self._calls = dict(calls)
        self._limits = limits or RpcLimits()
        self._connections = Connections(
            ConnectionLimits(
                total=self._limits.connections,
                per_address=self._limits.per_address,
                stranger_s=self._limits.read_s,
            ),
            self.counters,
        )
        self._unix_paths: list[tuple[Path, int]] = []
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        # Of its own: the threads of the loop may all be busy with files.
        self._lookups = ThreadPoolExecutor(1, thread_name_prefix="rpc-peers")

    async def listen_unix(self, path: Path, auth: RpcAuth | None = None) -> None:
        """Listen on a socket file that only this user can connect to.

        Raises:
            UsageError: Another agent answers there, or the socket cannot be made.
        """
        auth = auth or RpcAuth(uids=trusted_uids())
        try:
            listener, inode = bind_path(path)
        except OSError as error:
            raise UsageError(
                f"the socket {path} cannot be made: {error.strerror or error}",
                hint="its folder must exist, belong to you, and have a short path",
            ) from error
        self._unix_paths.append((path, inode))
        self._connections.listen(listener, self._serve_with(auth))

    async def listen_tcp(self, port: int, address: str = "", auth: RpcAuth | None = None) -> int:
        """Listen on both loopback addresses, or on one that is asked for.

        ``port`` 0 takes a free one. An address that other machines reach needs a token and TLS.

        Returns:
            The port.

        Raises:
            UsageError: The port is taken, the address is not of this machine, or not protected.
        """
        auth = auth or RpcAuth(uids=trusted_uids())
        if address in {"", "localhost"}:
            found = bind_loopback(port)
        else:
            auth.check_address(address)
            found = bind_tcp(address, port)
        for one in found:
            self._connections.listen(one, self._serve_with(auth))
        port = int(found[0].getsockname()[1])
        self.ports += [port] * len(found)
        return port

    def _serve_with(self, auth: RpcAuth) -> Serve:
        async def serve(guest: Guest) -> None:
            try:
                await self._serve(guest, auth)
            except asyncio.CancelledError:
                self.counters.unanswered += 1
                raise
            except Exception:
                self.counters.failed += 1
                _LOGGER.exception("a call failed")

        return serve

    async def _serve(self, guest: Guest, auth: RpcAuth) -> None:
        if not await self._is_allowed(guest.socket, auth):
            self.counters.refused += 1
            return
        try:
            reader, writer = await open_streams(guest, auth.tls)
        except OSError as error:
            self.counters.unanswered += 1
            _LOGGER.info("a connection was not made: %s", error)
            return
        try:
            await self._answer(guest, reader, writer, auth)
        finally:
            writer.transport.abort()

    async def _answer(
        self,
        guest: Guest,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        auth: RpcAuth,
    ) -> None:
        request = await self._read(reader)
        if request is None:
            return
        if not auth.takes(request.pop("token", None)):
            self.counters.refused += 1
            _LOGGER.warning("a call without the right token was refused")
            return
        guest.let_in()
        reply = await self._call(request)
        if reply is None or len(reply) > MAX_REPLY_BYTES:
            self.counters.unanswered += 1
            return
        await self._write(writer, reply)

    async def _is_allowed(self, connection: socket.socket, auth: RpcAuth) -> bool:
        if auth.uids is None:
            return True
        if connection.family == socket.AF_UNIX:
            uid = read_unix_uid(connection)
        else:
            try:
                peer, own = connection.getpeername()[:2], connection.getsockname()[:2]
            except OSError:
                return False  # it has hung up already
            if not is_loopback(peer[0]):
                return True
            uid = await self._find_uid(peer, own)
        if uid in auth.uids:
            return True
        if uid is None:
            # Mostly one that has hung up at once, as port scanners and health checks do.
            _LOGGER.info("a call was refused: whose it is cannot be told")
        else:
            _LOGGER.warning("a call of user %d was refused; hint: a token lets others call", uid)
        return False

    async def _find_uid(self, peer: tuple[str, int], own: tuple[str, int]) -> int | None:
        try:
            return ask_loopback_uid(peer, own)
        except (OSError, ValueError):
            # A sandbox may not have sock_diag. The table is long where there are many connections.
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._lookups, read_loopback_uid, peer, own)

    async def _read(self, reader: asyncio.StreamReader) -> dict[str, Any] | None:
        """Return the request, or None where none came that can be understood."""
        try:
            header = await reader.readexactly(HEADER_BYTES)
            length = parse_length(header, MAX_REQUEST_BYTES)
            # Who sends it is not known yet: many large ones would take all memory.
            async with self._large if length > _LARGE_BYTES else contextlib.nullcontext():
                return parse_object(await reader.readexactly(length))
        except asyncio.IncompleteReadError as error:
            # Port scanners and health checks connect and say nothing: no word in the log.
            self.counters.malformed += bool(error.partial)
        except FrameError as error:
            self.counters.malformed += 1
            _LOGGER.info("a request was not understood: %s", error)
        except OSError:
            self.counters.unanswered += 1
        return None

    async def _call(self, request: dict[str, Any]) -> bytes | None:
        name = request.get("fn")
        call = self._calls.get(name) if isinstance(name, str) else None
        if call is None:
            _LOGGER.info("an unknown call was refused")
            return None
        try:
            async with asyncio.timeout(self._limits.call_s):
                return await call(request)
        except TimeoutError:
            _LOGGER.warning("a call of %s took too long", name)
            return None

    async def _write(self, writer: asyncio.StreamWriter, reply: bytes) -> None:
        try:
            async with asyncio.timeout(self._limits.write_s):
                writer.write(pack_frame(reply))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except TimeoutError:
            self.counters.timed_out += 1
        except OSError:
            self.counters.unanswered += 1
        else:
            self.counters.answered += 1

    async def close(self) -> None:
        """Stop listening, end all calls, and remove the socket files that are still ours."""
        await self._connections.close()
        for path, inode in self._unix_paths:
            with contextlib.suppress(OSError):
                if path.stat().st_ino == inode:
                    path.unlink()
        self._lookups.shutdown(wait=False, cancel_futures=True)
        self._unix_paths.clear()
