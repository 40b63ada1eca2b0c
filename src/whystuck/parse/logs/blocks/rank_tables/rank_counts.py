"""Counts of calls that people print of each rank: `all_reduce calls: rank0 412 rank1 411`.

A heading, or the beginning of the line, says which calls are counted. The numbers stand behind the
names of ranks, several in a line or one in each, or in the order of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

COUNT_MARKS = (
    b"reduce calls",
    b"gather calls",
    b"barrier calls",
    b"broadcast calls",
    b"collective calls",
    b"calls made",
    b"calls issued",
    b"calls so far",
    b"calls per rank",
    b"calls by rank",
    b"calls of each rank",
    b"reduce count",
    b"gather count",
    b"barrier count",
    b"collective count",
    b"collectives issued",
    b"collectives made",
    b"collectives called",
    b"collectives per rank",
    b"issued collectives",
    b"number of all",
    b"number of collective",
    b"number of barrier",
    b"reduces per rank",
    b"gathers per rank",
    b"barriers per rank",
    # a column of a table
    b" all_reduce  ",
    b" allreduce  ",
    b"| all_reduce",
    b"| allreduce",
    b",all_reduce",
    b",allreduce",
    b"\tall_reduce",
    b"\tallreduce",
    b"rank all_reduce",
    b"rank allreduce",
    b"rank  all_reduce",
    b"rank  allreduce",
)
_OP = (
    r"(?:all[_-]?reduc|all[_-]?gather|reduce[_-]?scatter|all[_-]?to[_-]?all|broadcast|barrier"
    r"|collective)\w{0,16}"
)
_COUNT = (
    r"(?:calls?|counts?|counters?|called|issued|made|launched|entered|number|times|seq|per rank"
    r"|by rank)"
)
_HEAD = re.compile(
    rf"\b(?P<op>{_OP})\b.{{0,40}}?\b{_COUNT}\b|\b{_COUNT}\b.{{0,30}}?\b(?P<op2>{_OP})\b",
    re.IGNORECASE,
)
_CELL = re.compile(
    r"(?<![\w.])(?:rank[ _:#]?|r)(\d{1,7})\]?[ :=]{1,4}(\d{1,12})"
    r"(?![\w.%/]|\s?(?:ms|s|MB|GB|MiB)\b)",
    re.IGNORECASE,
)
_LEAST_CELLS = 2
# In the order of ranks.
_LIST = re.compile(r"[:=]\s{0,4}[\[(]?((?:\d{1,12}(?:, ?| {1,4})){2,512}\d{1,12})[\])]?\s*$")
_IN_ORDER = re.compile(r"\b(?:per|by|each|all|of the) ranks?\b|\branks? \d", re.IGNORECASE)
# Of the rank that writes it: `[rank3] all_reduce calls in epoch 3: 411`
_OWN = re.compile(r"\b[\w)\]]{1,40}\s?[:=]\s{0,3}(\d{1,12})(?: calls)?\s*$")
# `rank 3: ` before a number is taken for a prefix.
_BARE = re.compile(r"^\s{0,8}[=:|]?\s{0,4}(\d{1,12})(?: (?:calls?|times))?\s*$")
# `rank | all_reduce | all_gather`, and numbers below it.
_COLUMNS = re.compile(r"^[\s|#]{0,8}rank\b(?P<rest>[\s|,\w()/-]{4,300})$", re.IGNORECASE)
_ROW = re.compile(
    r"^[\s|]{0,8}(?:rank ?|r)?(\d{1,7})(?P<rest>(?:[\s|,:]{1,20}\d{1,12}){1,16})[\s|]{0,8}$"
)
_IS_OP = re.compile(rf"{_OP}$", re.IGNORECASE)
# Times stand in such tables, too: somebody must say that these are counts, just above or in it.
_COUNTS = re.compile(r"\b(?:calls?|counts?|counters?|issued|number of|how many)\b", re.IGNORECASE)
_TIMES = re.compile(r"\b(?:ms|us|sec|seconds?|times?|durations?|GB/s|Gbps)\b", re.IGNORECASE)
_NEAR = 3
_MOST_COLUMNS = 16
# That it was looked at because nothing moved.
_STUCK = re.compile(
    r"\b(?:stall|hang|hung|stuck|freez|froze|deadlock|time ?out|timed out)\w{0,4}\b", re.IGNORECASE
)


class CountReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._begin = 0
        self._strangers = 0
        self._groups: dict[str, str] = {}
        # What stands in each column behind that of the ranks, where it is such a table.
        self._columns: list[str] = []
        self._told = -_NEAR

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._begin)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the count of each rank in it."""
        is_head = is_mark and self._begin_list(line.text, row)
        if self._begin_table(line.text, row, is_mark=is_mark) or not self._begin:
            return
        if self._columns and (match := _ROW.match(line.text)):
            self._strangers = 0
            yield from self._read_row(line, row, match)
            return
        if is_head and (own := _read_own(line)):
            table = {"table": f"each {self._groups['op']}", "own": str(own[0])}
            yield TabledSeen(
                "table.calls", row, line, self._groups | table | {"count": str(own[1])}
            )
            self._begin = 0
            return
        told = _read_counts(line, is_head=is_head)
        for rank, count in told:
            if rank <= MAX_RANK:
                groups = self._groups | {"own": str(rank), "count": str(count)}
                yield TabledSeen("table.calls", row, line, groups)
        self._strangers = 0 if told or is_head else self._strangers + 1
        if self._strangers > MAX_STRANGERS:
            self._begin = 0

    def _begin_list(self, text: str, row: int) -> bool:
        """Begin a list of the calls of one op, where a line is the heading of one."""
        head = _HEAD.search(text)
        if head is not None:
            self._begin, self._strangers, self._columns = row, 0, []
            is_stuck = "1" if _STUCK.search(text) else ""
            op = (head["op"] or head["op2"]).lower()
            self._groups = {"table": str(row), "op": op, "stuck": is_stuck}
        return head is not None

    def _begin_table(self, text: str, row: int, *, is_mark: bool) -> bool:
        """Begin a table with a column for each op, where a line names its columns."""
        if (is_mark or self._begin) and _COUNTS.search(text) and not _TIMES.search(text):
            self._told = row
        columns = _read_columns(text) if is_mark and row - self._told <= _NEAR else []
        if columns:
            is_stuck = self._groups.get("stuck", "") if self._begin else ""
            self._begin, self._strangers, self._columns = row, 0, columns
            self._groups = {"table": str(row), "op": "", "stuck": is_stuck}
        return bool(columns)

    def _read_row(self, line: LogLine, row: int, match: re.Match[str]) -> Iterator[TabledSeen]:
        """Yield the counts of each op in a row."""
        cells = re.findall(r"\d+", match["rest"])
        if len(cells) != len(self._columns) or int(match[1]) > MAX_RANK:
            return
        for name, count in zip(self._columns, cells, strict=True):
            if _IS_OP.match(name):
                told = {"table": f"{self._begin} {name}", "op": name, "own": match[1]}
                yield TabledSeen("table.calls", row, line, self._groups | told | {"count": count})


def _read_own(line: LogLine) -> tuple[int, int] | None:
    """Return the rank that wrote a line, and the count that it tells of itself."""
    match = _OWN.search(line.text) if 0 <= line.writer <= MAX_RANK else None
    return (line.writer, int(match[1])) if match else None


def _read_columns(text: str) -> list[str]:
    """Return the columns of a table behind that of ranks, where one of them counts an op."""
    match = _COLUMNS.match(text)
    cells = re.split(r"\s*[|,]\s*|\s{2,}|\t", match["rest"].strip(" |,\t")) if match else []
    if match and len(cells) == 1:
        cells = cells[0].split()
    names = [cell.strip().removesuffix(" calls").lower() for cell in cells if cell.strip()]
    is_table = any(_IS_OP.match(name) for name in names) and len(names) <= _MOST_COLUMNS
    return names if is_table else []


def _read_counts(line: LogLine, *, is_head: bool) -> list[tuple[int, int]]:
    """Return the ranks of a line and their counts."""
    cells = [(int(rank), int(count)) for rank, count in _CELL.findall(line.text)]
    if cells and (len(cells) >= _LEAST_CELLS or not is_head):
        return cells
    if (found := _LIST.search(line.text)) and (not is_head or _IN_ORDER.search(line.text)):
        return list(enumerate(map(int, re.findall(r"\d+", found[1]))))
    bare = _BARE.match(line.text) if line.writer >= 0 and not is_head else None
    return [(line.writer, int(bare[1]))] if bare else []
