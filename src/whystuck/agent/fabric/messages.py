"""What Kineto's clients send, and what they take; bytes in, values out.

One message is one datagram: a head of 40 bytes (``size_t`` size of what follows, and a name of up
to 31 characters) and a payload, all in the byte order of the machine. A client looks at the head
first and makes room for what it says, so a head that lies ends the training process: `pack_reply`
is the only place where one is made.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

HEAD: Final = struct.Struct("@N32s")
REQUEST: Final = b"req"
CONTEXT: Final = b"ctxt"

_REQUEST_HEAD: Final = struct.Struct("@iiq")  # type, number of pids, job
_CONTEXT: Final = struct.Struct("@iiq")  # gpu, pid, job
_COUNT: Final = struct.Struct("@i")

MAX_PIDS: Final = 256
"""Kineto sends 11 at most."""
MAX_MESSAGE_BYTES: Final = 4096
"""Longer datagrams of clients are not theirs."""
MAX_CONFIG_BYTES: Final = 64 << 10
"""Longest configuration that is sent.

A client takes any size that its memory holds; the kernel takes what fits the send buffer of our
socket (``net.core.wmem_default``, 208 KiB where nobody changed it).
"""


class MessageError(ValueError):
    """A datagram that no Kineto client sends; the text says why."""


class Request(NamedTuple):
    """``req``: is there anything to do? The pids are those of the sender and its ancestors."""

    wants: int
    job_number: int
    pids: tuple[int, ...]


class Context(NamedTuple):
    """``ctxt``: a process begins to use a GPU, and asks how many do."""

    gpu: int
    pid: int
    job_number: int


def parse_message(data: bytes) -> Request | Context:
    """Return what a client said; raises MessageError."""
    if len(data) < HEAD.size:
        raise MessageError("shorter than the head of a message")
    size_bytes, padded = HEAD.unpack_from(data)
    name = padded.partition(b"\0")[0]
    if size_bytes != len(data) - HEAD.size:
        raise MessageError("another size than its head says")
    if name == REQUEST:
        return _parse_request(data)
    if name == CONTEXT:
        return _parse_context(data)
    raise MessageError("a message of an unknown type")


def pack_reply(config: str) -> bytes:
    """Return the answer to a request, "" when there is nothing to do.

    Raises ValueError when a configuration is longer than `MAX_CONFIG_BYTES` or not text.
    """
    payload = config.encode()
    if len(payload) > MAX_CONFIG_BYTES:
        raise ValueError(
            f"a configuration has {len(payload)} bytes, and at most {MAX_CONFIG_BYTES} are sent"
        )
    return HEAD.pack(len(payload), REQUEST) + payload


def pack_count(count: int) -> bytes:
    """Return the answer to a context: how many processes use that GPU."""
    return HEAD.pack(_COUNT.size, CONTEXT) + _COUNT.pack(count)


def pack_request(wants: int, job_number: int, pids: tuple[int, ...]) -> bytes:
    """Return what a client sends to ask for work; for tests and measurements."""
    head = _REQUEST_HEAD.pack(wants, len(pids), job_number)
    payload = head + struct.pack(f"@{len(pids)}i", *pids)
    return HEAD.pack(len(payload), REQUEST) + payload


def pack_context(gpu: int, pid: int, job_number: int) -> bytes:
    """Return what a client sends when it begins to use a GPU; for tests and measurements."""
    return HEAD.pack(_CONTEXT.size, CONTEXT) + _CONTEXT.pack(gpu, pid, job_number)


def _parse_request(data: bytes) -> Request:
    size_bytes = len(data) - HEAD.size
    if size_bytes < _REQUEST_HEAD.size:
        raise MessageError("a request that was cut")
    wants, num_pids, job_number = _REQUEST_HEAD.unpack_from(data, HEAD.size)
    if not 0 <= num_pids <= MAX_PIDS:
        raise MessageError("a request with too many pids")
    if size_bytes != _REQUEST_HEAD.size + 4 * num_pids:
        raise MessageError("a request with another number of pids than it says")
    pids = struct.unpack_from(f"@{num_pids}i", data, HEAD.size + _REQUEST_HEAD.size)
    return Request(wants, job_number, pids)


def _parse_context(data: bytes) -> Context:
    if len(data) != HEAD.size + _CONTEXT.size:
        raise MessageError("a context of another size")
    return Context(*_CONTEXT.unpack_from(data, HEAD.size))
