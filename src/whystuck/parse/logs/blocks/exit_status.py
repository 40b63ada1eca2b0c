"""With which status a program ended, as people ask their shell below what it printed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tabled import TabledSeen
from whystuck.parse.logs.lines import LogLine

STATUS_MARKS = (
    b"echo $?", b'echo "', b"${?}", b": $?",
    b"echo rc", b"echo exit", b"echo status", b"echo code", b"echo ret",
)  # fmt: skip
# Behind a prompt, and nothing before it on its line: else it is the status of that.
_ASKED = re.compile(
    r"^(?:[^$#%>]{0,80}[$#%>] ?|> ?)?echo \"?(?:\w{1,12}[ =:]{1,3}){0,2}\$\{?\?\}?\"?\s*$"
)
_TOLD = re.compile(r"^(?:\w{1,12}[ =:]{1,3}){0,2}(\d{1,3})\s*$")


class StatusReader:
    """Takes the line below the question."""

    def __init__(self) -> None:
        self._is_asked = False

    @property
    def is_open(self) -> bool:
        """Whether the next line may be the status."""
        return self._is_asked

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the status that it is."""
        is_asked, self._is_asked = self._is_asked, is_mark and bool(_ASKED.match(line.text))
        if is_asked and (match := _TOLD.match(line.text)):
            yield TabledSeen("shell.status", row, line, {"status": match[1]})
