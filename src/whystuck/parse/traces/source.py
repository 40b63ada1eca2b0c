"""The content of a trace that is not yet read, in a buffer that is used again and again.

A decoder wants a list in brackets. To copy each piece between two would take as long as a third of
the decoding, as new memory is touched each time; the brackets are put into the buffer instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from whystuck.parse.errors import ParseError

_OPEN, _CLOSE = ord("["), ord("]")
# What parts two events is mostly shorter.
_FEW_BYTES = 64


class Source:
    """The content from the first byte that is not yet read.

    ``is_ended`` tells that no more will come, and ``damage`` why it ended early.
    """

    def __init__(self, pieces: Iterable[bytes], piece_bytes: int) -> None:
        self.is_ended = False
        self.damage = ""
        self._pieces = iter(pieces)
        self._piece_bytes = piece_bytes
        self._pending = memoryview(b"")
        # There is always room for a bracket before the content and one behind it. It grows with
        # what there is: to make room for two pieces takes as long as to read a trace of 1 KB.
        self._buffer = bytearray(2)
        self._start = self._end = 1

    def __len__(self) -> int:
        return self._end - self._start

    @property
    def text(self) -> bytes:
        """A copy of all that is there."""
        return bytes(memoryview(self._buffer)[self._start : self._end])

    @text.setter
    def text(self, text: bytes) -> None:
        self._reserve(0, len(text))
        self._start, self._end = 1, 1 + len(text)
        self._buffer[1 : self._end] = text

    def head(self, size: int) -> bytes:
        """Return a copy of the first bytes."""
        return bytes(memoryview(self._buffer)[self._start : min(self._end, self._start + size)])

    def fill(self, size: int) -> None:
        """Have ``size`` bytes at least, unless the content ends."""
        while len(self) < size and not self.is_ended:
            if not len(self._pending):
                self._pending = memoryview(self._next())
            part = self._pending[: max(size - len(self), self._piece_bytes)]
            self._pending = self._pending[len(part) :]
            self._reserve(len(self), len(part))
            self._buffer[self._end : self._end + len(part)] = part
            self._end += len(part)

    def _next(self) -> bytes:
        try:
            piece = next(self._pieces, None)
        except ParseError as error:
            piece, self.damage = None, str(error)
        self.is_ended = piece is None
        return piece or b""

    def _reserve(self, kept: int, more: int) -> None:
        """Make room for ``more`` bytes behind the first ``kept`` of the content."""
        if self._end + more < len(self._buffer):
            return
        content = bytes(memoryview(self._buffer)[self._start : self._start + kept])
        if kept + more + 2 > len(self._buffer):
            # Decoded events may still look into the old one, which then cannot grow.
            self._buffer = bytearray(2 * (kept + more) + 2)
        self._start, self._end = 1, 1 + kept
        self._buffer[1 : self._end] = content

    def rfind(self, text: bytes) -> int:
        """Return where a text comes last in the second half of the content, -1 for nowhere."""
        found = self._buffer.rfind(text, self._start + len(self) // 2, self._end)
        return found - self._start if found >= 0 else -1

    def offer(self, size: int, take: Callable[[memoryview], bool]) -> bool:
        """Offer the first bytes in brackets; when they are taken, the content begins behind them.

        Args:
            size: How many bytes.
            take: Gets them, and returns whether they are taken. It must not keep them.

        Returns:
            Whether they were taken.
        """
        before, behind = self._start - 1, self._start + size
        saved = self._buffer[before], self._buffer[behind]
        self._buffer[before], self._buffer[behind] = _OPEN, _CLOSE
        is_taken = take(memoryview(self._buffer)[before : behind + 1])
        self._buffer[before], self._buffer[behind] = saved
        if is_taken:
            self._start += size
        return is_taken

    def skip_bytes(self, size: int) -> None:
        """Pass over some bytes."""
        self._start += size

    def skip(self, blanks: bytes) -> None:
        """Pass over some bytes, as far as they come."""
        size = _FEW_BYTES
        while self._start < self._end:
            text = self.head(size)
            left = text.lstrip(blanks)
            self._start += len(text) - len(left)
            if left:
                return
            size = self._piece_bytes
