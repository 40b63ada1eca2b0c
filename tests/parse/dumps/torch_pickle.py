"""Pickles values as torch's own pickler does, which is not how Python does it."""

from __future__ import annotations

import io
import pickletools
import struct
from typing import Any

_PUTS = ("BINPUT", "LONG_BINPUT")


def as_torch_pickle(value: object) -> bytes:
    return TorchPickler().dump(value)


def puts_twice(data: bytes) -> bool:
    """Tell a pickle that gives one place of its memo two values, as only damaged ones do."""
    puts = [place for opcode, place, _at in pickletools.genops(data) if opcode.name in _PUTS]
    return len(puts) != len(set(puts))


class TorchPickler:
    """Pickles plain values as torch's own pickler does.

    Texts and the dictionaries of frames get a place in the memo, lists and tuples do not.
    """

    def __init__(self) -> None:
        """Start a pickle."""
        self._out = io.BytesIO()
        self._memo: dict[object, int] = {}

    def dump(self, value: object) -> bytes:
        """Pickle a value."""
        self._out.write(b"\x80\x02")
        self._push(value)
        self._out.write(b".")
        return self._out.getvalue()

    def _push(self, value: object) -> None:
        write = self._out.write
        if value is None:
            write(b"N")
        elif isinstance(value, bool):
            write(b"\x88" if value else b"\x89")
        elif isinstance(value, int | float):
            write(_pack_number(value))
        elif isinstance(value, str):
            self._push_text(value)
        elif isinstance(value, list):
            write(b"](")
            for item in value:
                self._push(item)
            write(b"e")
        elif isinstance(value, tuple):
            for item in value:
                self._push(item)
            write(b"\x86")
        elif isinstance(value, dict):
            self._push_dict(value)
        else:
            raise TypeError(type(value))

    def _push_text(self, text: str) -> None:
        if not self._get(text):
            data = text.encode()
            self._out.write(b"X" + struct.pack("<I", len(data)) + data)
            self._put(text)

    def _push_dict(self, value: dict[Any, Any]) -> None:
        shared = "filename" in value
        if shared and self._get(id(value)):
            return
        self._out.write(b"}")
        if shared:
            self._put(id(value))
        self._out.write(b"(")
        for key, item in value.items():
            self._push(key)
            self._push(item)
        self._out.write(b"u")

    def _get(self, key: object) -> bool:
        place = self._memo.get(key)
        if place is None:
            return False
        narrow = place < 256
        self._out.write(b"h" + bytes([place]) if narrow else b"j" + struct.pack("<I", place))
        return True

    def _put(self, key: object) -> None:
        place = self._memo[key] = len(self._memo)
        narrow = place < 256
        self._out.write(b"q" + bytes([place]) if narrow else b"r" + struct.pack("<I", place))


def _pack_number(value: float) -> bytes:
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if 0 <= value < 1 << 8:
        return b"K" + bytes([value])
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)
