"""The lines of a log that are looked at for what they tell of the job, whatever they hold.

Those are its head and its tail, and a few of each block.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from whystuck.parse.logs.facts import LogFacts
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.plain_forms import PlainForms
from whystuck.parse.logs.search.raw_lines import list_forms
from whystuck.parse.logs.search.scan import MAX_LINE

HEAD_BYTES = 1 << 15
TAIL_BYTES = 1 << 15
SAMPLE_LINES = 16
# Of lines that tell of progress alone, so many of each form are taken apart, the last ones: of each
# end, and of what is sampled of a block.
_LAST_OF_END, _LAST_OF_BLOCK = 16, 2


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
        self._plain = PlainForms()
        self._tail = b""
        self._tail_row = 1
        # The first lines of blocks, with the number of the first, which may be a part of the tail.
        self._few: deque[tuple[int, list[bytes]]] = deque()

    def take(self, data: bytes, lines: int, row: int) -> None:
        """Look at some lines of a block, which has so many lines and begins at a row."""
        left = HEAD_BYTES - self._sampled
        piece = data[: max(left, 0)]
        if left > 0:
            self._sampled += len(data)
            self._sample(piece.split(b"\n")[: self._most], row, _LAST_OF_END)
        else:
            self._few.append((row, data[: SAMPLE_LINES * 400].split(b"\n")[:SAMPLE_LINES]))
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
        self._sample_few(self._tail_row)

    def finish(self) -> None:
        """Look at the end of the log."""
        lines = self._tail.split(b"\n")
        over = max(0, len(lines) - 1 - self._most)
        self._sample_few(self._tail_row + over)
        self._sample(lines[over:], self._tail_row + over, _LAST_OF_END)
        self._tail = b""

    def _sample_few(self, end: int) -> None:
        """Look at the few lines of blocks that stand before a row."""
        while self._few and self._few[0][0] + len(self._few[0][1]) <= end:
            row, lines = self._few.popleft()
            self._sample(lines, row, _LAST_OF_BLOCK)

    def _sample(self, lines: list[bytes], row: int, last: int) -> None:
        """Look at lines from a row on; of many alike, at the last ones."""
        pieces = [text[-MAX_LINE:].rstrip(b"\r").rpartition(b"\r")[2] for text in lines]
        forms = list_forms(pieces)
        # The last ones, whatever they tell, show when they were written.
        left, end = Counter(forms), row + len(lines) - last // 2
        for at, (piece, form) in enumerate(zip(pieces, forms, strict=True), row):
            left[form] -= 1
            if at <= self._seen_row or not lines[at - row].strip():
                continue
            self._seen_row = at
            like = None
            if at < end:
                like = self._plain.find_like(form, piece, is_last=left[form] < last)
            if like is not None:
                self._facts.count_like(like.line)
                if like.is_progress and last == _LAST_OF_END:
                    self._facts.pace.count_step(at, like.cut(piece))
            else:
                line = self._parse(piece)
                self._plain.learn(form, piece, line, self._facts.sample(line, at))
