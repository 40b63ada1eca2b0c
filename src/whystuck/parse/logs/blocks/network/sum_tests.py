"""What nccl-tests and rccl-tests print of results that are wrong: rows of sizes, and their sum.

The column is `#wrong` from release 2.11 on. Before that it is `error`, the largest deviation, which
rounding alone makes larger than zero: of those, the last line tells whether it is too large.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

SUM_TEST_MARKS = (b"#wrong", b"# Out of bounds values", b"# Using devices", b" Group  0 Pid ")
# `#  Rank  3 Group  0 Pid  4211 on   cn01 device  3 [0x9b] NVIDIA H100`
_DEVICE = re.compile(
    r"^#\s{1,4}Rank\s{1,4}(?P<rank>\d{1,6})\s.{0,40}?\bon\s{1,8}(?P<host>\S{1,80}) device\s"
)
# `# Out of bounds values : 22 FAILED`; `0 OK` where all are right
_TOTAL = re.compile(r"^# Out of bounds values\s{0,8}: (?P<wrong>\d{1,18}) (?P<word>FAILED|OK)\b")
_ROW = re.compile(r"^\s{0,20}\d{1,18}\s{1,20}\d{1,18}\s")
_WRONG = "#wrong"
# So many lines of a test, of its cells and of its ranks.
_MOST_LINES, _MOST_CELLS, _MOST_RANKS = 160, 24, 4096


class SumTestReader:
    """Follows one test at a time."""

    def __init__(self) -> None:
        self._left = 0
        self._begin = 0
        self._head: list[str] = []
        self._hosts: dict[int, str] = {}

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be of a test."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield it where it tells of wrong results."""
        text = line.text
        if is_mark:
            self._begin = self._begin if self._left > 0 else row
            self._left = _MOST_LINES
        self._left -= 1
        if match := _TOTAL.match(text):
            wrong = int(match["wrong"]) if match["word"] == "FAILED" else 0
            if wrong:
                yield self._make(line, row, wrong, "sum")
            self._left, self._head, self._hosts = 0, [], {}
        elif match := _DEVICE.match(text):
            self._note_device(int(match["rank"]), match["host"])
        elif text.startswith("# Using devices"):
            self._begin, self._head, self._hosts = row, [], {}
        elif _WRONG in text and "busbw" in text:
            self._head = text.lstrip("# ").split(maxsplit=_MOST_CELLS)
        elif self._head and _ROW.match(text) and (wrong := self._count_wrong(text)):
            yield self._make(line, row, wrong, "row")
        elif not self._head and (not text.startswith("#") or "..." in text):
            self._hosts = {}  # some of its ranks may be left out

    def _note_device(self, rank: int, host: str) -> None:
        if len(self._hosts) < _MOST_RANKS:
            self._hosts[rank] = host

    def _count_wrong(self, text: str) -> int:
        """Return how many values of a size are wrong; cells of tests without a check are `N/A`."""
        cells = text.split(maxsplit=_MOST_CELLS)
        if len(cells) != len(self._head):
            return 0
        told = [cell for name, cell in zip(self._head, cells, strict=True) if name == _WRONG]
        return sum(int(cell[:18]) for cell in told if cell.isascii() and cell.isdecimal())

    def _make(self, line: LogLine, row: int, wrong: int, of: str) -> TabledSeen:
        groups = {"table": f"sums {self._begin}", "wrong": str(wrong), "of": of}
        groups["hosts"] = " ".join(self._list_hosts())
        return TabledSeen("table.wrong", row, line, groups)

    def _list_hosts(self) -> list[str]:
        """Return the hosts of the test; none where the list of its ranks is not whole."""
        is_whole = bool(self._hosts) and max(self._hosts) + 1 == len(self._hosts)
        return sorted(set(self._hosts.values()))[:_MOST_CELLS] if is_whole else []
