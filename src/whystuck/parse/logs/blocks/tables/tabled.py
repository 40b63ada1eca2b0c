"""What readers of tables give: one row, by the names of its columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from whystuck.parse.logs.lines.lines import LogLine

MAX_ROWS = 8192
# So many lines that are no row end a table.
MAX_STRANGERS = 2


@dataclass(slots=True)
class TabledSeen:
    """One row of a table, by the names of its columns.

    What is told of one thing in several lines is one row: its groups grow until the next begins.
    """

    name: str
    row: int
    line: LogLine
    groups: dict[str, str]


class RowReader(Protocol):
    """Follows tables of one kind, one at a time."""

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the row that it is, or begins."""
