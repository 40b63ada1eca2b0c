"""Which rank a process is that somebody looked at below a heading: ``node of rank 3:``."""

from __future__ import annotations

import re

from whystuck.evidence.ranks import MAX_RANK

# So far below its heading the first command stands, and so far the heading reaches.
_NEXT, _REACH = 3, 60
# At the end of a line: `node of rank 3:`, `on the host of rank 3 (stuck):`, `rank 3's process:`
_HEADING = re.compile(
    r"(?<!local )(?<!local[_-])(?<![A-Za-z])rank[ =:#_]{0,2}(\d{1,7})(?:['\u2019]s)?"
    r"(?: (?:node|host|box|machine|pod|process|container|server|worker)\b)?"
    r"(?: ?\([^()\d]{1,40}\))?\s{0,2}[:>-]{1,3}\s{0,4}$",
    re.IGNORECASE,
)
# Of one among several, or of the others.
_DENIED = re.compile(
    r"\b(?:not|but|except|besides|unlike|than|without|wait\w*|behind|and|or|from|to)"
    r"(?: (?:for|the|of|node|host|process|pod)){0,3} $|ranks? [\d, -]{1,20}$",
    re.IGNORECASE,
)
_COMMAND = re.compile(
    r"^\s{0,4}(?:[\w@:~./\[\] -]{0,60}[$#%>] ?)?(?:sudo (?:-\w )?)?(?:timeout \d{1,4} )?"
    r"(?:ps|cat|head|tail|grep|gdb|strace|ls|lsof|pstack|eu-stack|py-spy|perf|top|pidstat)\b"
)
_LOOKED = re.compile(r"(?:--pid[ =]|(?<!\S)-p ?|/proc/|\bpstack |\bdump )(\d{2,7})\b(?!,)")


class HeadedLooks:
    """Remembers the last heading of a rank, and the process that was looked at below it.

    Of two processes below one heading, nothing tells which one is the rank.
    """

    def __init__(self) -> None:
        self._rank = -1
        self._row = self._pid = 0

    def read(self, text: str, row: int) -> tuple[int, int, bool] | None:
        """Take a line; return a process, its rank, and whether that holds or is taken back."""
        if text.rstrip().endswith((":", ">", "-")) and "rank" in text.lower():
            self._begin(text, row)
            return None
        is_open = self._rank >= 0 and row - self._row <= (_REACH if self._pid else _NEXT)
        if not is_open or not _COMMAND.match(text):
            return None
        pids = {int(pid) for pid in _LOOKED.findall(text)} - {self._pid}
        if not pids:
            return None
        first, self._pid = self._pid, min(pids)
        if first or len(pids) > 1:
            self._rank, taken = -1, self._rank
            return (first, taken, False) if first else None
        return self._pid, self._rank, True

    def _begin(self, text: str, row: int) -> None:
        heading = _HEADING.search(text)
        is_one = heading is not None and not _DENIED.search(text[: heading.start()])
        self._rank = int(heading[1]) if heading is not None and is_one else -1
        self._rank = self._rank if self._rank <= MAX_RANK else -1
        self._row, self._pid = row, 0
