"""Sizes or types of the tensors of each rank, which tools print beside a collective that differs.

`input sizes  rank 0: [[4096, 512]]  rank 1: [[4096, 512]]`: in one line, or a line for each rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

RANK_SIZE_MARKS = (
    *(b"put sizes", b"put_sizes", b"put shapes", b"put_shapes", b"tensor sizes", b"tensor shapes"),
    *(b"put dtypes", b"put_dtypes"),
)
_HEAD = re.compile(
    r"(?<![a-z_])(?P<what>(?:in|out)put|tensor)[ _](?P<kind>sizes|shapes|dtypes)\b[\"']?[ :=]{0,8}",
    re.IGNORECASE,
)
_VALUE = r"(\[{1,2}[\d, \[\]]{1,200}\]|\(\d[\d, ]{0,80}\)|\[?'?\w{3,20}'?\]?)"
_CELL = re.compile(rf"(?<![\w.])(?:rank[ _]?|r)(\d{{1,7}})[ :=]{{1,3}}{_VALUE}", re.IGNORECASE)
_BARE = re.compile(rf"^\s{{0,8}}[:=]?\s{{0,4}}{_VALUE}[\s,;]{{0,8}}$")
_MOST_ROWS = 4096


class RankSizeReader:
    """Follows one list at a time."""

    def __init__(self) -> None:
        self._groups: dict[str, str] = {}
        self._left = 0

    @property
    def is_open(self) -> bool:
        """Whether the next line may tell of another rank."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield what it tells of each rank."""
        text = line.text
        if is_mark and (head := _HEAD.search(text)):
            kind = "type" if head["kind"].lower() == "dtypes" else "shape"
            self._groups = {"what": head["what"].lower(), "kind": kind, "table": str(row)}
            text = text[head.end() :]
            self._left = 0 if text.strip() and not _CELL.match(text) else _MOST_ROWS
            if not text.strip():
                return
        cells = [(rank, value) for rank, value in _CELL.findall(text) if int(rank) <= MAX_RANK]
        if not cells and line.rank != UNKNOWN_RANK and (bare := _BARE.match(text)):
            cells = [(str(line.rank), bare[1])]
        for rank, value in cells if self._left else ():
            groups = self._groups | {"own": rank, "value": re.sub(r"[\s'\[\]()]", "", value)}
            yield TabledSeen("table.rank_size", row, line, groups)
        self._left = self._left - 1 if cells else 0
