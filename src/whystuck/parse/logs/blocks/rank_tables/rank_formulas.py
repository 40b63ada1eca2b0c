"""How many ranks each pod or host has, as people say how they are numbered."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

FORMULA_MARKS = (
    *(b"+ local", b"+local", b"+ gpu", b"+gpu", b"+ GPU", b"+ device"),
    *(b"rank = pod", b"rank=pod", b"rank == pod", b"rank is the pod", b"rank = replica"),
)
_PLACE = r"(?P<{0}>pod|node|replica|worker|host)(?:[ _](?:rank|id|index|ordinal|number|idx))?"
_RANK = r"\b(?:global[ _])?rank ?(?:=|==|is|:) ?"
_LOCAL = r" ?\+ ?(?:local(?:[ _]?rank)?|gpu|device|index|i|l|lr)\b"
# `rank = 2*pod + local`, `rank = node_rank * 8 + local_rank`
_FORMULA = re.compile(
    rf"{_RANK}(?:(?P<count>\d{{1,3}}) ?[*x\u00d7] ?{_PLACE.format('one')}"
    rf"|{_PLACE.format('other')} ?[*x\u00d7] ?(?P<behind>\d{{1,3}})){_LOCAL}",
    re.IGNORECASE,
)
# `rank = pod index`, where each has one rank
_SAME = re.compile(
    rf"{_RANK}(?:the )?{_PLACE.format('one')}(?:'s (?:index|number|ordinal))?"
    r"(?=[\s.,;)]|$)(?! ?[*x])",
    re.IGNORECASE,
)


class FormulaReader:
    """Reads single lines."""

    is_open = False

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield how many ranks each place has."""
        if not is_mark:
            return
        if match := _FORMULA.search(line.text):
            count = match["count"] or match["behind"]
            place = (match["one"] or match["other"]).lower()
        elif match := _SAME.search(line.text):
            count, place = "1", match["one"].lower()
        if match and int(count):
            yield TabledSeen("table.rank_formula", row, line, {"count": count, "place": place})
