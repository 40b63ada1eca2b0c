"""Sums over tensors that ranks print step by step: `[0] step 50 sum(lora_A)= 1.2391`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.steady_steps import STEP

SUM_MARKS = (b"sum(", b"mean(", b".sum", b".mean")
_OWN = re.compile(r"^\s{0,8}\[(\d{1,7})\]\s|\brank[ _=:#]{0,2}(\d{1,7})\b", re.IGNORECASE)
_SUM = re.compile(
    r"(?:\b(?:sum|mean)\((?P<inner>[A-Za-z_][\w.]{0,80})\)"
    r"|(?<![\w.])(?P<outer>[A-Za-z_]\w{0,40}(?:\.\w{1,40}){0,6}?)\.(?:sum|mean)(?:\(\))?)"
    r"\s?[=:]\s{0,4}(?P<value>[-+]?\d{1,12}\.\d{2,12})(?![\w.])"
)
_MAX_WIDTH, _MOST_SUMS, _MOST_ROWS = 400, 4, 2000


class SumReader:
    """Reads each such line by itself."""

    is_open = False

    def __init__(self) -> None:
        self._count = 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the sums in it."""
        text = line.text[:_MAX_WIDTH]
        step, said = STEP.search(text), _OWN.search(text)
        own = int(said[1] or said[2]) if said else line.rank
        if not is_mark or step is None or own > MAX_RANK or self._count >= _MOST_ROWS:
            return
        found = list(islice(_SUM.finditer(text), _MOST_SUMS))
        if not found:
            return
        self._count += 1
        yield TabledSeen(
            "table.own_sum",
            row,
            line,
            {
                "own": str(own),
                "step": step[1] or step[2] or step[3],
                "names": " ".join(match["inner"] or match["outer"] for match in found),
                "values": " ".join(match["value"] for match in found),
            },
        )
