"""The stacks that torchfrtrace prints below what it says of a collective: ``train at x.py:211``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

RECORDER_STACK_MARKS = (b"collective stack trace",)
_HEAD = re.compile(r"^\s{0,8}collective stack trace:\s*(\S.{0,400})?$")
_FRAME = re.compile(
    r"^\s{0,8}(?P<function>[\w<>.]{1,200}) at (?P<file>[^\s:]{1,300}):(?P<line>\d{1,9})\s*$"
)
_MOST_FRAMES = 64


class RecorderStackReader:
    """Follows one stack at a time."""

    def __init__(self) -> None:
        self._begin, self._left = 0, 0

    @property
    def is_open(self) -> bool:
        """Whether the next line may be a frame."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the frame that it is, the innermost first."""
        text = line.text
        if is_mark and (head := _HEAD.match(text)):
            self._begin, self._left = row, _MOST_FRAMES
            text = head[1] or ""
        if self._left and (match := _FRAME.match(text)):
            self._left -= 1
            groups = {**match.groupdict(), "stack": str(self._begin)}
            yield TabledSeen("table.recorder_frame", row, line, groups)
        elif row != self._begin:
            self._left = 0
