"""Calls an agent: by its socket file, or by TCP with a token and TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from whystuck.agent.rpc.frames import (
    HEADER_BYTES,
    MAX_REPLY_BYTES,
    FrameError,
    encode_object,
    pack_frame,
    parse_length,
    parse_object,
)
from whystuck.agent.rpc.peers import find_loopback_uid, is_loopback, trusted_uids
from whystuck.evidence.agent import DYNO_PORT
from whystuck.evidence.errors import UsageError, WhystuckError

_LOOK_S = 0.01
REFUSED, MUTE, CLOSED, UNTRUSTED, GARBLED, TOLD = (
    "refused",
    "mute",
    "closed",
    "untrusted",
    "garbled",
    "told",
)


class CallError(WhystuckError):
    """A call that got no answer, or an error for one.

    ``kind`` is ``refused`` (nobody listens there), ``mute`` (no answer in time), ``closed`` (the
    agent hung up), ``untrusted`` (TLS failed), ``garbled``, or ``told``: the agent says what is
    wrong, and ``told_kind`` which of its `ERROR_KINDS` that is.
    """

    def __init__(self, message: str, *, hint: str = "", kind: str, told_kind: str = "") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.told_kind = told_kind


@dataclass(frozen=True)
class RpcAddress:
    """Where an agent listens: ``path`` of its socket, or ``host`` and ``port``."""

    path: str = ""
    host: str = ""
    port: int = DYNO_PORT
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """Return it as people write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path or f"{host}:{self.port}"


async def call(
    address: RpcAddress, name: str, fields: Mapping[str, Any], *, timeout_s: float
) -> dict[str, Any]:
    """Call ``name`` of an agent and return its reply.

    Args:
        address: Where it listens.
        name: The name of the call.
        fields: What it takes.
        timeout_s: How long connecting and answering may take together.

    Raises:
        CallError: There is no reply, or it is an error.
        UsageError: The token would cross the network in the clear, or go to another user.
    """
    raw = await exchange(address, pack_request(address, name, fields), timeout_s=timeout_s)
    try:
        reply = parse_object(raw)
    except FrameError as error:
        raise _garbled(address, error) from error
    if "error" in reply:
        raise CallError(
            str(reply["error"]),
            hint=str(reply.get("hint", "")),
            kind=TOLD,
            told_kind=str(reply.get("kind", "")),
        )
    return reply


def pack_request(address: RpcAddress, name: str, fields: Mapping[str, Any]) -> bytes:
    """Return the body of a request, with the token that the address has."""
    token = {"token": address.token} if address.token else {}
    return encode_object({**fields, "fn": name, **token})


async def exchange(address: RpcAddress, body: bytes, *, timeout_s: float) -> bytes:
    """Send one request and return the bytes of the reply; raises as `call` does."""
    is_near = address.path or address.host == "localhost" or is_loopback(address.host)
    if address.token and not address.tls and not is_near:
        raise UsageError(
            f"the token would go to {address} unencrypted",
            hint="give --tls-ca, the certificate that the agent's is signed by",
        )
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(address, body)
    except TimeoutError as error:
        raise CallError(
            f"{address} does not answer within {timeout_s:g} s",
            hint="the agent, or its machine, may hang",
            kind=MUTE,
        ) from error
    except FrameError as error:
        raise _garbled(address, error) from error
    except asyncio.IncompleteReadError as error:
        raise CallError(
            f"{address} hung up without an answer",
            hint="it may not know the call, or not take it from you: is the token right?",
            kind=CLOSED,
        ) from error
    except ssl.SSLError as error:
        raise CallError(
            f"there is no trust between us and {address}: {error.reason or error}",
            hint="is TLS on at both ends, and the certificate made for that host name?",
            kind=UNTRUSTED,
        ) from error
    except OSError as error:
        raise CallError(
            f"{address} cannot be reached: {_explain(error)}",
            hint="is an agent running there? `whystuck agent` starts one",
            kind=REFUSED,
        ) from error


async def _exchange(address: RpcAddress, body: bytes) -> bytes:
    reader, writer = await _connect(address)
    try:
        if address.token and not address.path and not address.tls:
            await _check_listener(address, reader, writer)
        writer.write(pack_frame(body))
        await writer.drain()
        length = parse_length(await reader.readexactly(HEADER_BYTES), MAX_REPLY_BYTES)
        return await reader.readexactly(length)
    finally:
        writer.transport.abort()


async def _connect(address: RpcAddress) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.path:
        return await asyncio.open_unix_connection(address.path)
    name = address.host if address.tls else None
    return await asyncio.open_connection(
        address.host, address.port, ssl=address.tls, server_hostname=name
    )


async def _check_listener(
    address: RpcAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Raise UsageError when another user listens where the agent should: it would get the token."""
    own, peer = writer.get_extra_info("sockname")[:2], writer.get_extra_info("peername")[:2]
    # A connection is nobody's until the other side has taken it.
    while (uid := await asyncio.to_thread(find_loopback_uid, peer, own)) is None:
        if reader.at_eof() or reader.exception():
            raise asyncio.IncompleteReadError(b"", HEADER_BYTES)
        await asyncio.sleep(_LOOK_S)
    if uid not in trusted_uids():
        raise UsageError(
            f"the token would go unencrypted to user {uid}, who listens at {address}",
            hint="give --tls-ca, the certificate that the agent's is signed by",
        )


def _garbled(address: RpcAddress, error: Exception) -> CallError:
    return CallError(
        f"{address} answers something else: {error}",
        hint="is it an agent that listens there?",
        kind=GARBLED,
    )


def _explain(error: OSError) -> str:
    text = error.strerror or str(error)
    # asyncio puts the addresses it tried into one long text.
    return "connection refused" if isinstance(error, ConnectionRefusedError) else text
