"""Lines of a platform's boot check among those of a job."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.parse.boot_check import MAX_SEEN, BootSeen, find_boot_text
from whystuck.parse.logs.lines.lines import LogLine

BOOT_MARKS = (
    b"DiskTest /", b" RW TEST: ", b"AllReduce Check: ", b"NCCL Performance Check: ",
    b"to run Bootchecking", b"to run Troubleshooting",
)  # fmt: skip
# Facts, which have no mark, stand so few lines behind another line of the check.
_NEAR = 16


class BootReader:
    """Takes the lines; facts only near others, as jobs print the like."""

    def __init__(self) -> None:
        self._left = 0
        self._count = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be facts."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[BootSeen]:
        """Take a line."""
        is_near = self._left > 0
        self._left = max(0, self._left - 1)
        if self._count >= MAX_SEEN or not (is_mark or is_near):
            return
        if text := find_boot_text(line.text):
            self._left, self._count = _NEAR, self._count + 1
            yield BootSeen(row, text, line.stamp.ns if line.stamp else 0, line.node)
