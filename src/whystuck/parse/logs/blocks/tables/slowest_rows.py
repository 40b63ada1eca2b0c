"""Tables with a row for each step: which rank was the slowest, and what is usual."""

from __future__ import annotations

import re

from whystuck.parse.logs.blocks.tables import cells
from whystuck.parse.logs.blocks.tables.column_names import find_scale, read_name
from whystuck.parse.logs.blocks.tables.headed import HeadedReader

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


class SlowestReader(HeadedReader[list[tuple[str, float]]]):
    """Follows one table at a time."""

    name = "table.slowest"

    def _read_head(self, told: list[str]) -> list[tuple[str, float]] | None:
        columns = [_name(cell) for cell in told]
        names = [name for name, _ in columns]
        is_head = all(names.count(name) == 1 for name in ("slow", "took", "usual"))
        return columns if is_head else None

    def _read_cells(self, head: list[tuple[str, float]], told: list[str]) -> list[dict[str, str]]:
        groups = _read_groups(head, told) if len(told) == len(head) else {}
        return [groups] if groups else []


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
