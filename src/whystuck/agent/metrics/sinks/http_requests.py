"""Reads one HTTP/1 request from a connection and answers it, by Tornado's parser."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import (
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import IOStream, SSLIOStream, StreamClosedError, UnsatisfiableReadError

from whystuck.agent.connections import Guest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ANSWER_S = 30.0
"""How long who was let in may take to read its answer."""
_MAX_HEAD_BYTES = 16 << 10
_MAX_BODY_BYTES = 4 << 10
_READ_BYTES = 4 << 10
_PARAMETERS = HTTP1ConnectionParameters(
    no_keep_alive=True, max_header_size=_MAX_HEAD_BYTES, max_body_size=_MAX_BODY_BYTES
)

Answer = tuple[int, bytes]
"""The code of the status, and the body."""
MakeAnswer = Callable[[Guest, str, str], Answer]
"""Makes the answer for a path and the value of ``Authorization``; it lets the guest in, or not."""

# What strangers send is no trouble of ours: it would fill the log of the agent.
logging.getLogger("tornado.general").setLevel(logging.ERROR)


async def serve(guest: Guest, tls: ssl.SSLContext | None, make_answer: MakeAnswer) -> None:
    """Answer the first request of a connection, and close it."""
    try:
        stream = _open(guest, tls)
    except OSError:
        return  # it has hung up already
    connection = HTTP1Connection(stream, is_client=False, params=_PARAMETERS)
    try:
        async with asyncio.timeout(None) as deadline:
            request = _Request(connection, partial(make_answer, guest), deadline)
            await connection.read_response(request)
    except TimeoutError:
        _drop_unsent(stream)
    except (StreamClosedError, UnsatisfiableReadError):
        pass  # it is gone, or its head is too long
    finally:
        stream.close()


def _open(guest: Guest, tls: ssl.SSLContext | None) -> IOStream:
    # Small buffers: a connection of a stranger takes some KiB.
    size = {"max_buffer_size": _MAX_HEAD_BYTES * 2, "read_chunk_size": _READ_BYTES}
    if tls is None:
        return IOStream(guest.socket, **size)
    wrapped = tls.wrap_socket(guest.socket, server_side=True, do_handshake_on_connect=False)
    return SSLIOStream(wrapped, **size)


def _drop_unsent(stream: IOStream) -> None:
    """Make the close a reset: else the kernel keeps the rest for minutes, for who does not read."""
    if stream.socket is not None:
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class _Request(HTTPMessageDelegate):
    """Answers as soon as the request is whole; a body is read and dropped."""

    def __init__(
        self,
        connection: HTTP1Connection,
        make_answer: Callable[[str, str], Answer],
        deadline: asyncio.Timeout,
    ) -> None:
        self._connection = connection
        self._make_answer = make_answer
        self._deadline = deadline
        self._line = RequestStartLine("", "", "")
        self._authorization = ""

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        """Keep what the answer goes by."""
        if isinstance(start_line, RequestStartLine):
            self._line = start_line
            self._authorization = headers.get("Authorization", "")

    def finish(self) -> None:
        """Begin to write the answer."""
        self._deadline.reschedule(asyncio.get_running_loop().time() + ANSWER_S)
        if self._line.method in {"GET", "HEAD"}:
            path = self._line.path.partition("?")[0]
            code, body = self._make_answer(path, self._authorization)
        else:
            code, body = 501, b"there is only GET and HEAD\n"
        headers = {"Content-Type": CONTENT_TYPE, "Content-Length": str(len(body))}
        if code == 401:  # noqa: PLR2004 - HTTP
            headers["WWW-Authenticate"] = "Bearer"
        start = ResponseStartLine("HTTP/1.1", code, HTTPStatus(code).phrase)
        self._connection.write_headers(start, HTTPHeaders(headers))
        if self._line.method != "HEAD":
            self._connection.write(body)
        self._connection.finish()
