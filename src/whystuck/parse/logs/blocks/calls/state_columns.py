"""States of recorded ops, a row for each op and a column for each rank, as people print them.

`seq  op  r0  r1  r2`, and below `2291  all_reduce  completed  completed  started`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

STATE_MARKS = (b" r0 ", b" R0 ", b" rank0 ", b" Rank0 ", b"\tr0\t", b"\trank0\t")
_HEAD = re.compile(
    r"^[\s|#]{0,8}(?:seq(?:_id)?|coll(?:ective)?_seq(?:_id)?|seq\.?(?: no\.?)?|#)[\s|]{1,12}"
    r"(?:op(?:eration|type)?|collective|call|profiling_name)[\s|]{1,40}"
    r"(?P<ranks>(?:r(?:ank)?[ _]?\d{1,7}[\s|]{1,20}){2,1024})$",
    re.IGNORECASE,
)
_RANK = re.compile(r"\d{1,7}")
_ROW = re.compile(
    r"^[\s|]{0,8}#?(?P<seq>\d{1,18})[\s|]{1,12}"
    r"(?:(?:nccl|gloo|hccl|xccl|ucc|mpi):)?(?P<op>[A-Za-z]\w{2,40})[\s|]{1,40}(?P<cells>\S.{0,8000})$"
)
_GAP = re.compile(r"[\s|]+")
# Each state has words of its own; what is none of these is not known.
_STATES = {
    "completed": "completed",
    "complete": "completed",
    "done": "completed",
    "finished": "completed",
    "started": "started",
    "start": "started",
    "running": "started",
    "scheduled": "scheduled",
    "sched": "scheduled",
    "enqueued": "scheduled",
    "queued": "scheduled",
}
_UNTOLD = {"-", "--", "n/a", "none"}


class StateReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._ranks: list[int] = []
        self._strangers = 0
        self._tables = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._ranks)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the ops of all ranks in it."""
        head = _HEAD.match(line.text + " ") if is_mark else None
        if head is not None:
            ranks = [int(number) for number in _RANK.findall(head["ranks"])]
            is_sound = len(set(ranks)) == len(ranks) and max(ranks) <= MAX_RANK
            self._ranks = ranks if is_sound else []
            self._strangers, self._tables = 0, self._tables + 1
        elif self._ranks:
            told = list(self._read_row(line, row))
            self._strangers = 0 if told else self._strangers + any(map(str.isalnum, line.text))
            if self._strangers > MAX_STRANGERS:
                self._ranks = []
            yield from told

    def _read_row(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        match = _ROW.match(line.text)
        cells = _GAP.split(match["cells"].strip(" \t|").lower()) if match else []
        is_whole = len(cells) == len(self._ranks) and all(
            cell in _STATES or cell in _UNTOLD for cell in cells
        )
        if match is None or not is_whole:
            return
        # Numbers of one table are those of one group.
        base = {
            "op": match["op"],
            "seq": match["seq"],
            "group": "" if self._tables == 1 else f"table {self._tables}",
            "is_counted": "",
        }
        empty = dict.fromkeys(("sites", "sizes", "dtype"), "")
        for rank, cell in zip(self._ranks, cells, strict=True):
            if cell in _STATES:
                groups = {"own": str(rank), "state": _STATES[cell], **base, **empty}
                yield TabledSeen("table.entry", row, line, groups)
