"""The frames of dynolog's protocol: ``int32`` length in native byte order, and as many bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec

_LENGTH = struct.Struct("=i")
HEADER_BYTES = _LENGTH.size
MAX_REQUEST_BYTES = 1 << 20
"""A request is a page at most in practice: a configuration and some pids."""
MAX_REPLY_BYTES = 64 << 20
"""A reply may hold a piece of a trace, or the processes of a large node."""


class FrameError(Exception):
    """Bytes that are no frame of this protocol; the reason is the text."""


def pack_frame(body: bytes) -> bytes:
    """Return ``body`` with its length in front."""
    return _LENGTH.pack(len(body)) + body


def parse_length(header: bytes, limit_bytes: int) -> int:
    """Return how many bytes follow a header.

    Raises:
        FrameError: The header is short, or tells no length, or one above the limit.
    """
    if len(header) != HEADER_BYTES:
        raise FrameError(f"the header has {len(header)} bytes instead of {HEADER_BYTES}")
    (length,) = _LENGTH.unpack(header)
    if not 0 < length <= limit_bytes:
        raise FrameError(f"a length of {length} bytes is outside of 1 to {limit_bytes}")
    return int(length)


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a frame holds.

    Raises:
        FrameError: It is no JSON, no object, or nested deeper than any call needs.
    """
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise FrameError("the JSON is no object")
    return found


def encode_object(fields: Mapping[str, Any]) -> bytes:
    """Return compact JSON with sorted keys, as dynolog writes it."""
    return msgspec.json.encode(fields, order="sorted")
