"""Whose output lines are that `tail` and `head` print of several files, each under its name.

`==> logs/attempt_0/5/stdout.log <==` stands above the lines of that file.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.logs.lines import LogLine
from whystuck.parse.logs.names import read_log_name

_MARK = b"==> "
_HEADING = re.compile(rb"^==> ([\w./~@+=,-]{1,300}) <==[ \r]{0,2}$", re.MULTILINE)
# Nobody prints more files at once.
_MOST = 4096
# What has no such name so far down is the log of one job; to look on would cost a tenth more.
_HEAD = 1 << 18


class FileSections:
    """Knows, for each place of a block, which file the lines there are of."""

    def __init__(self) -> None:
        self._last = (UNKNOWN_RANK, -1)
        self._starts: list[int] = []
        self._owners: list[tuple[int, int]] = []
        self._left = _MOST
        self._unseen, self._is_seen = _HEAD, False

    def begin(self, data: bytes) -> None:
        """Begin the next block; what stands last in the one before goes on."""
        if self._owners:
            self._last = self._owners[-1]
        self._starts, self._owners = [], []
        end = len(data) if self._is_seen else min(len(data), self._unseen)
        self._unseen -= end
        if data.find(_MARK, 0, end) < 0:
            return
        self._is_seen = True
        for match in _HEADING.finditer(data):
            if not self._left:
                break
            self._left -= 1
            self._starts.append(match.start())
            name = read_log_name(match[1].decode("ascii", "replace"))
            rank = UNKNOWN_RANK if name.rank is None else name.rank
            self._owners.append((rank, -1 if name.local is None else name.local))

    def name(self, line: LogLine, start: int) -> None:
        """Give a line that names no writer the rank of the file that it is of."""
        at = bisect_right(self._starts, start) - 1
        rank, local = self._owners[at] if at >= 0 else self._last
        is_named = line.rank != UNKNOWN_RANK or line.task != UNKNOWN_RANK or line.local >= 0
        if is_named or line.is_kernel or (rank == UNKNOWN_RANK and local < 0):
            return
        line.rank, line.local = rank, local if rank == UNKNOWN_RANK else -1
