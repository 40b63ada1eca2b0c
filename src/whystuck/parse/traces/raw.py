"""The events of a trace as they are written, piece by piece: for what copies a trace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from whystuck.evidence.decoding import convert, json_decoder
from whystuck.parse.errors import ParseError
from whystuck.parse.traces.cut import find_values
from whystuck.parse.traces.repair import read_object

Raw = msgspec.Raw
Event = dict[str, Raw]

T = TypeVar("T")


class Timed(msgspec.Struct, gc=False):
    """What must be known of an event to find the earliest, as it is written."""

    ph: Raw = Raw(b"")
    ts: Raw = Raw(b"")


_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENT = json_decoder(Event)
# What stands before and after the list of events is small; more is not kept.
_MAX_OUTSIDE, _MAX_TAIL = 16 << 20, 8 << 20
# One event that is larger than this is none.
_MAX_EVENT = 8 << 20


class RawEvents(Generic[T]):
    """Iterates over the events of a trace, a list of them at a time.

    After the last one, ``keys`` are all other keys of the trace, ``dropped`` counts the events that
    could not be read, and ``is_whole`` tells whether the list was closed.
    """

    def __init__(self, pieces: Iterable[bytes], kind: type[T]) -> None:
        """Read from a file that was unpacked, in pieces of any size.

        Args:
            pieces: The file.
            kind: What to make of each event, `Event` or `Timed`.
        """
        self._pieces = iter(pieces)
        self._kind = kind
        self._decoder = json_decoder(list[kind])  # type: ignore[valid-type]
        self._head = b""
        self.keys: dict[str, Any] = {}
        self.dropped = 0
        self.is_whole = False

    def __iter__(self) -> Iterator[list[T]]:
        """Yield the events in the order of the file.

        Raises:
            ParseError: It is no trace.
        """
        text = self._find_list()
        while True:
            layout = find_values(text)
            if len(layout.end):
                yield self._decode(text, layout.start.tolist(), layout.end.tolist())
                if layout.close < 0:
                    text = text[int(layout.end[-1]) :]
            if layout.close >= 0:
                self.is_whole = True
                self._read_keys(text[layout.close + 1 :])
                return
            piece = next(self._pieces, b"")
            if not piece or len(text) > _MAX_EVENT:
                self._pieces = iter(())
                self._read_keys(b"")
                return
            text += piece

    def _find_list(self) -> bytes:
        text = b""
        for piece in self._pieces:
            text += piece
            if text.lstrip()[:1] == b"[":
                # A bare list of events is a trace, too.
                return text.lstrip()[1:]
            if match := _LIST.search(text):
                self._head = text[: match.start()]
                return text[match.end() :]
            if len(text) > _MAX_OUTSIDE:
                break
        raise ParseError("it has no traceEvents")

    def _decode(self, text: bytes, starts: list[int], ends: list[int]) -> list[T]:
        try:
            return self._decoder.decode(b"[" + text[starts[0] : ends[-1]] + b"]")
        except (ValueError, RecursionError):
            pass
        found = []
        for start, end in zip(starts, ends, strict=True):
            event = _mend(text[start:end])
            if event is None:
                self.dropped += 1
            else:
                found.append(convert(event, self._kind))
        return found

    def _read_keys(self, text: bytes) -> None:
        # What follows the end of the trace is of another one.
        while (close := find_values(text).close) < 0 and len(text) < _MAX_TAIL:
            parts, size = [text], len(text)
            while size < 2 * len(text) + 1 and (piece := next(self._pieces, b"")):
                parts.append(piece)
                size += len(piece)
            if len(parts) == 1:
                break
            text = b"".join(parts)
        tail = (text[: close + 1] if close >= 0 else text[:_MAX_TAIL]).strip()
        head = self._head.rstrip().removesuffix(b",")
        for whole in (head + (tail or b"}"), head + b"}"):
            found = read_object(whole if head.strip() != b"{" else whole.replace(b",", b"", 1))
            if found is not None:
                self.keys = found
                return


def _mend(text: bytes) -> Event | None:
    """Read one event; one that is no strict JSON is written again, as far as it can be read."""
    try:
        return _EVENT.decode(text)
    except (ValueError, RecursionError):
        pass
    found = read_object(text)
    if found is None:
        return None
    try:
        return _EVENT.decode(msgspec.json.encode(found))
    except (ValueError, TypeError, RecursionError):
        return None
