"""Decoding to types of msgspec, safe in threads; the only place where that is asked for.

msgspec builds what it knows of a type at its first use, and shows it to all threads before it is
complete: of two that use a type for the first time at once, one may crash the process or spin for
ever (msgspec 0.22; `tests/evidence/test_decoding.py`). So it is built here, by one thread at a
time, and not while a process is forked.
"""

from __future__ import annotations

import os
import threading
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec

_T = TypeVar("_T")
_MAX_KEPT = 512

_building = threading.RLock()
os.register_at_fork(
    before=_building.acquire,
    after_in_parent=_building.release,
    after_in_child=_building.release,
)


def json_decoder(kind: type[_T], *, strict: bool = True) -> msgspec.json.Decoder[_T]:
    """Return a decoder of JSON; the same one for the same type."""
    with _building:
        made: msgspec.json.Decoder[_T] = _make_json(cast("Any", kind), strict)
    return made


def msgpack_decoder(kind: type[_T]) -> msgspec.msgpack.Decoder[_T]:
    """Return a decoder of MessagePack; the same one for the same type."""
    with _building:
        made: msgspec.msgpack.Decoder[_T] = _make_msgpack(cast("Any", kind))
    return made


def decode_json(data: bytes | bytearray | memoryview | str, kind: type[_T]) -> _T:
    """Return a value of JSON; raises msgspec.DecodeError and msgspec.ValidationError."""
    return json_decoder(kind).decode(data)


def decode_msgpack(data: bytes | bytearray | memoryview, kind: type[_T]) -> _T:
    """Return a value of MessagePack; raises as :func:`decode_json` does."""
    return msgpack_decoder(kind).decode(data)


def convert(value: object, kind: type[_T], *, strict: bool = True, str_keys: bool = False) -> _T:
    """Return a value made of plain ones; raises msgspec.ValidationError."""
    json_decoder(kind)
    return msgspec.convert(value, kind, strict=strict, str_keys=str_keys)


@lru_cache(_MAX_KEPT)
def _make_json(kind: Any, strict: bool) -> Any:  # noqa: ANN401, FBT001 - any type
    return msgspec.json.Decoder(kind, strict=strict)


@lru_cache(_MAX_KEPT)
def _make_msgpack(kind: Any) -> Any:  # noqa: ANN401 - any type
    return msgspec.msgpack.Decoder(kind)
