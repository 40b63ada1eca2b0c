"""The groups of communicators in an answer of NCCL's RAS, and whether it tells of any trouble.

An answer in which all is well names no communicator: its table of groups is all that there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

GROUP_MARKS = (b"     Comms     Nodes",)
_HEAD = re.compile(r"^\s{0,4}Group\s{1,9}Comms\s{1,9}Nodes\s{1,9}Ranks\b")
_UNDER = re.compile(r"^\s{0,6}#\s{1,9}in group\b")
_ROW = re.compile(
    r"^\s{0,8}(?P<group>\d{1,9})\s{1,16}(?P<comms>\d{1,9})\s{1,16}\d{1,9}\s{1,16}[\d-]{1,19}\s{1,16}"
    r"\d{1,9}\s{1,16}\d{1,9}\s{1,16}(?P<status>[A-Z]{1,20})\s{1,16}(?P<errors>[A-Z,]{1,60})\s{0,8}$"
)
_SECTION = re.compile(r"^(?:Errors|Warnings)\s{0,4}$")
# What stands in the sections of errors and warnings, and nowhere else.
_TROUBLE = re.compile(
    r"^\s{0,8}#\d|\b(?:INCOMPLETE|MISMATCH|ERROR|dead|missing|[Uu]nreachable|timeouts?|unresponsive"
    r"|[Ee]rrors? on|not respond|[Ll]ost)\b"
)
_MAX_STRANGERS = 12


class GroupReader:
    """Follows one answer at a time."""

    def __init__(self) -> None:
        self._begin = self._left = 0
        self._is_told = False

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be of the answer."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the group that it is, or the trouble that it tells of."""
        text = line.text
        if is_mark and _HEAD.match(text):
            self._begin, self._left, self._is_told = row, _MAX_STRANGERS, False
            return
        if not self.is_open:
            return
        where = {"answer": str(self._begin)}
        if match := _ROW.match(text):
            yield TabledSeen("ras.group", row, line, where | match.groupdict())
        elif _SECTION.match(text):
            self._is_told, self._left = True, _MAX_STRANGERS
        elif self._is_told and _TROUBLE.search(text):
            yield TabledSeen("ras.trouble", row, line, where)
        elif not _UNDER.match(text) and any(char.isalnum() for char in text):
            self._left -= 1
