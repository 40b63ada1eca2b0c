"""Tables of what ranks compute and should have alike: norms of gradients, sums over weights.

A program that compares its ranks prints a heading that says what is compared, such as fairseq's
`grad_norm across the workers:`, and a line for each rank below it. People who print checksums of
their ranks say so, and show a line for each step with those of all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.column_names import names_sum, tells_sums
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_MEMBERS = (b"workers", b"ranks", b"replicas")
_SUMS = (
    *(b"checksum", b"Checksum", b"param hash", b"params hash", b"weight hash", b"weights hash"),
    *(b"model hash", b"state hash", b"parameter hash", b"parameters hash", b"hash of "),
    *(b"norm of all", b"norm of the", b"norm of we", b"norm of pa", b"norm of mo", b"weight norm"),
    *(b"param norm", b"parameter norm", b"um of |", b"um of all", b"um over all", b"ingerprint"),
    b"hashes of ",
)
# The second of several ranks in one line.
_SECOND = (b" r1=", b" r1:", b" rank1=", b" rank1:")
VALUE_MARKS = (
    *_SUMS,
    *(
        word + b" " + members
        for word in (b"across the", b"across all", b"across", b"between the", b"between")
        for members in _MEMBERS
    ),
    *_SECOND,
)
_HEAD = re.compile(
    r"\b(?:across|between)(?: the| all)? (?:workers|ranks|replicas)\s{0,2}:\s{0,8}$", re.IGNORECASE
)
# Of several ranks in one line: `r0 8f1c22d0  r1 8f1c22d0`
CELL = re.compile(
    r"(?<![\w.])(?:rank[ _]?|r)(\d{1,7})[ :=]{1,3}([0-9a-f]{6,64}"
    r"|[-+]?\d{1,20}\.\d{3,20}(?:e[-+]?\d{1,3})?)(?![\w.])",
    re.IGNORECASE,
)
_LEAST_CELLS = 3
# What is compared, in so many characters before that.
_WHAT = re.compile(
    r"\b(?:grad|param|weight|model|state|loss|norm|checksum|hash|sum)", re.IGNORECASE
)
_BEFORE = 80
_MOST = 200
_VALUE = r"([-+]?\d[\d.]{0,30}(?:e[-+]?\d{1,3})?|[0-9a-f]{6,64}|-?nan|-?inf)"
_ROW = re.compile(
    rf"^[\s|]{{0,12}}(?:rank|worker)\s{{0,6}}(\d{{1,7}})\s?[=:|]\s{{0,4}}{_VALUE}\b", re.IGNORECASE
)
# `rank 3: ` before a value is taken for a prefix.
_BARE = re.compile(rf"^\s{{0,8}}[=:|]?\s{{0,4}}{_VALUE}\s*$", re.IGNORECASE)


class ValueReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._begin = 0
        self._what = ""
        self._strangers = 0
        # Whether lines have the values of several ranks.
        self._is_wide = False

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._begin)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the value that it tells."""
        if is_mark and (what := _find_what(line.text)):
            self._begin, self._what, self._strangers, self._is_wide = row, what, 0, False
        elif cells := self._find_cells(line.text, is_mark=is_mark):
            self._strangers = 0
            # Each line compares the ranks at one step.
            groups = {"table": str(row), "what": self._what}
            for rank, value in cells if len(cells) >= _LEAST_CELLS else ():
                if int(rank) <= MAX_RANK:
                    cell = groups | {"own": rank, "sum": value.lower()}
                    yield TabledSeen("table.value", row, line, cell)
        elif is_mark and tells_sums([line.text]):
            self._begin, self._what, self._strangers, self._is_wide = row, "sum", 0, True
        elif self._begin and (told := _read_row(line)) is not None:
            self._strangers = 0
            groups = {"table": str(self._begin), "what": self._what, **told}
            yield TabledSeen("table.value", row, line, groups)
        elif self._begin:
            self._strangers += 1
            if self._strangers > MAX_STRANGERS:
                self._begin = 0

    def _find_cells(self, text: str, *, is_mark: bool) -> list[tuple[str, str]]:
        """Find the values of ranks in one line, below a heading or behind words like one."""
        if self._begin and self._is_wide:
            return CELL.findall(text)
        first = CELL.search(text) if is_mark else None
        is_told = first is not None and names_sum(
            text[max(0, first.start() - _MOST) : first.start()]
        )
        return CELL.findall(text) if is_told else []


def _find_what(text: str) -> str:
    """Return what a heading says is compared, empty where a line is none."""
    head = _HEAD.search(text)
    before = text[max(0, head.start() - _BEFORE) : head.start()] if head else ""
    return before.lower() if _WHAT.search(before) else ""


def _read_row(line: LogLine) -> dict[str, str] | None:
    if match := _ROW.match(line.text):
        rank, value = int(match[1]), match[2]
    elif match := _BARE.match(line.text):
        rank = line.writer
        value = match[1]
    else:
        return None
    return {"own": str(rank), "sum": value} if 0 <= rank <= MAX_RANK else None
