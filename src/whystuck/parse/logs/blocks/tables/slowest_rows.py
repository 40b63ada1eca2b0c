"""Tables with a row for each step: which rank was the slowest, and what is usual."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from whystuck.parse.logs.blocks.tables import cells
from whystuck.parse.logs.blocks.tables.column_names import find_scale, read_name
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

# A name with the end of its cell: the name alone is in lines of programs as well.
SLOWEST_MARKS = tuple(
    f"{word}{rank}{end}".encode()
    for word in ("slowest", "Slowest", "straggler", "Straggler")
    for rank in ("", " rank", "_rank")
    for end in (",", ";", " |", "  ", "\t", " \u2502")
)
_SLOWEST = re.compile(
    r"(?:slowest|straggler)(?:[ _](?:rank|r|id))?|rank \(slowest\)", re.IGNORECASE
)
_USUAL = re.compile(
    r"\b(?:medians?|mean|avg|average|usual|typical|p50|others?)\b[ _]?", re.IGNORECASE
)
_OWN = re.compile(r"\b(?:its|slowest|straggler|rank|max|own)\b[ _]?", re.IGNORECASE)
_S, _MOST_S = 1000.0, 50.0


class SlowestReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._heads: list[tuple[Callable[[str], list[str]], list[tuple[str, float]]]] = []
        self._strangers = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._heads)

    def read_row(self, line: LogLine, raw: str, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line, and the same with what stands before it; yield what its row tells."""
        if is_mark and (heads := _read_heads(raw)):
            self._heads, self._strangers = heads, 0
            return
        if not self._heads or cells.is_drawn(raw):
            return
        for way, columns in self._heads:
            told = cells.split_cells(raw, way)
            groups = _read_groups(columns, told) if len(told) == len(columns) else {}
            if groups:
                self._heads, self._strangers = [(way, columns)], 0
                yield TabledSeen("table.slowest", row, line, groups)
                return
        self._strangers += 1
        if self._strangers > MAX_STRANGERS:
            self._heads = []


def _read_heads(text: str) -> list[tuple[Callable[[str], list[str]], list[tuple[str, float]]]]:
    found = []
    for way in cells.WAYS:
        columns = [_name(cell) for cell in cells.split_cells(text, way)]
        names = [name for name, _ in columns]
        if all(names.count(name) == 1 for name in ("slow", "took", "usual")):
            found.append((way, columns))
    return found


def _name(cell: str) -> tuple[str, float]:
    """Return what a column holds, and how many ms the unit of its name is."""
    if _SLOWEST.fullmatch(cell):
        return "slow", 0.0
    is_usual = _USUAL.search(cell) is not None
    name = read_name(_OWN.sub("", _USUAL.sub("", cell)).strip())
    if name.kind == "time":
        return "usual" if is_usual else "took", name.scale
    if name.kind == "work":
        return "usual_work" if is_usual else "work", 0.0
    return "", 0.0


def _read_groups(columns: list[tuple[str, float]], told: list[str]) -> dict[str, str]:
    """Return what a row tells, nothing where it is no row."""
    rank, found, bare = -1, dict[str, float](), dict[str, float]()
    for (name, scale), cell in zip(columns, told, strict=True):
        if name == "slow":
            rank = cells.read_number(cell)
        elif name and (value := cells.read_value(cell)) is not None:
            unit = find_scale(value[1]) or scale
            into = found if unit or name.endswith("work") else bare
            into[name] = value[0] * (unit or 1.0)
    # Times without a unit are seconds where none is larger.
    usual = _S if max(bare.values(), default=_MOST_S) < _MOST_S else 1.0
    found |= {name: number * usual for name, number in bare.items()}
    if rank < 0 or not {"took", "usual"} <= found.keys():
        return {}
    return {"slow": str(rank)} | {name: str(number) for name, number in found.items()}
