"""The lines of a log that are looked at for what they tell of the job, whatever they hold.

Those are its head and its tail, and a few of each block.
"""

from __future__ import annotations

from collections.abc import Callable

from whystuck.parse.logs.facts import LogFacts
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.search.scan import MAX_LINE

HEAD_BYTES = 1 << 15
TAIL_BYTES = 1 << 15
SAMPLE_LINES = 16


class LogSampler:
    """Takes the blocks of one log."""

    def __init__(self, facts: LogFacts, parse: Callable[[bytes], LogLine], most: int) -> None:
        """Begin a log.

        Args:
            facts: Where to note what lines tell.
            parse: How to take a line apart.
            most: How many lines of each end are looked at.
        """
        self._facts, self._parse, self._most = facts, parse, most
        self._sampled = self._seen_row = 0
        self._tail = b""
        self._tail_row = 1

    def take(self, data: bytes, lines: int, row: int) -> None:
        """Look at some lines of a block, which has so many lines and begins at a row."""
        left = HEAD_BYTES - self._sampled
        piece = data[: max(left, 0)]
        if left > 0:
            self._sampled += len(data)
            self._sample(piece.split(b"\n")[: self._most], row)
        else:
            self._sample(data[: SAMPLE_LINES * 400].split(b"\n")[:SAMPLE_LINES], row)
        if len(data) > TAIL_BYTES:
            begin = data.find(b"\n", len(data) - TAIL_BYTES) + 1
            self._tail = data[begin:] if begin else b""
            self._tail_row = row + lines - data.count(b"\n", begin)
        else:
            self._tail += data
            if len(self._tail) > 4 * TAIL_BYTES:
                begin = self._tail.find(b"\n", len(self._tail) - TAIL_BYTES) + 1
                self._tail_row += self._tail.count(b"\n", 0, begin)
                self._tail = self._tail[begin:]

    def finish(self) -> None:
        """Look at the end of the log."""
        lines = self._tail.split(b"\n")
        over = max(0, len(lines) - 1 - self._most)
        self._sample(lines[over:], self._tail_row + over)
        self._tail = b""

    def _sample(self, lines: list[bytes], row: int) -> None:
        for number, text in enumerate(lines):
            if row + number > self._seen_row and text.strip():
                self._seen_row = row + number
                piece = text[-MAX_LINE:].rstrip(b"\r").rpartition(b"\r")[2]
                self._facts.sample(self._parse(piece), row + number)
