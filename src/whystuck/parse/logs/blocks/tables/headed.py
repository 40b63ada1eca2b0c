"""Tables below a row that names their columns, whose cells may be apart in several ways."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Generic, TypeVar

from whystuck.parse.logs.blocks.tables import cells
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

Head = TypeVar("Head")


class HeadedReader(ABC, Generic[Head]):
    """Follows tables of one kind, one at a time.

    A head may be split in more than one way; the first row that fits one of them decides.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self._heads: list[tuple[Callable[[str], list[str]], Head]] = []
        self._begin = self._strangers = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._heads)

    def read_row(self, line: LogLine, raw: str, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line, and the same with what stands before it; yield what its row tells.

        Args:
            line: The line.
            raw: The same with what stands before it.
            row: Its number.
            is_mark: Whether it may be a head.
        """
        if is_mark and (heads := list(self._list_heads(raw))):
            self._heads, self._begin, self._strangers = heads, row, 0
            return
        if not self._heads or cells.is_drawn(raw):
            return
        for way, head in self._heads:
            if told := self._read_cells(head, cells.split_cells(raw, way)):
                self._heads, self._strangers = [(way, head)], 0
                yield from (TabledSeen(self.name, row, line, groups) for groups in told)
                return
        self._strangers += 1
        if self._strangers > MAX_STRANGERS:
            self._heads = []

    def _list_heads(self, text: str) -> Iterator[tuple[Callable[[str], list[str]], Head]]:
        for way in cells.WAYS:
            if (head := self._read_head(cells.split_cells(text, way))) is not None:
                yield way, head

    @abstractmethod
    def _read_head(self, told: list[str]) -> Head | None:
        """Return what the cells of a head say of the columns, None where it is no head."""

    @abstractmethod
    def _read_cells(self, head: Head, told: list[str]) -> list[dict[str, str]]:
        """Return what the cells of a row tell, nothing where it is no row of this head."""
