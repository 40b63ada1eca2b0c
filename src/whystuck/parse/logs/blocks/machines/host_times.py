"""Tables of the times of hosts: a row for each, with the ranks that it has where they are told."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.label_forms import NO_COUNT
from whystuck.parse.logs.lines.lines import LogLine

HOST_MARKS = tuple(
    f"{word}{mark}".encode()
    for word in ("node", "host", "hostname", "pod", "Node", "Host", "NODE", "HOST", "machine")
    for mark in ("   ", "  |", " | ", "\t", ", ")
)
_HEAD = re.compile(
    r"^[\s|]{0,8}(?:node|host|hostname|pod|machine)(?:s|[ _]?name)?[ \t]{0,24}(?:[|,\t]|  )",
    re.IGNORECASE,
)
_SPLIT = re.compile(r"\s*[|,]\s*|\t+|\s{2,}")
_UNIT = re.compile(r"(?:[_(\[ ]{1,2})(ms|s|sec)[)\]]?$|^(ms|s)/(?:step|iter|it)$", re.IGNORECASE)
_TIME = re.compile(r"step|iter|compute|fwd|forward|bwd|backward|kernel|gemm", re.IGNORECASE)
_NAME = re.compile(rf"^{NO_COUNT}(?=[\w.]*[\d-])[A-Za-z][\w.-]{{1,62}}$")
_NUMBER = re.compile(r"^(\d{1,9}(?:\.\d{1,6})?)(?: ?(ms|s))?$")
_MS = {"s": 1000.0, "sec": 1000.0}


class HostTimeReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._begin = self._strangers = 0
        # Phases of the columns and how many ms their unit is; 0 for others.
        self._columns: list[tuple[str, float]] = []

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._begin)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the times that it tells."""
        if is_mark and (columns := _read_head(line.text)):
            self._begin, self._columns, self._strangers = row, columns, 0
            return
        if not self._begin:
            return
        cells = _SPLIT.split(line.text.strip(" \t|"))
        is_row = len(cells) == len(self._columns) and _NAME.match(cells[0])
        if not is_row:
            self._strangers += any(char.isalnum() for char in line.text)
            self._begin = self._begin if self._strangers <= MAX_STRANGERS else 0
            return
        self._strangers = 0
        for (phase, unit), cell in zip(self._columns, cells, strict=True):
            if unit and (match := _NUMBER.match(cell)):
                scale = _MS.get(match[2] or "", 1.0) if match[2] else unit
                groups = {"table": str(self._begin), "phase": phase, "host": cells[0]}
                ms = str(float(match[1]) * scale)
                yield TabledSeen("table.host_time", row, line, groups | {"ms": ms})


def _read_head(text: str) -> list[tuple[str, float]]:
    """Return the columns of a table of hosts; none where a line is no head, or tells no times."""
    if not _HEAD.match(text):
        return []
    found = []
    for name in _SPLIT.split(text.strip(" \t|")):
        unit = _UNIT.search(name)
        is_time = _TIME.search(name) is not None and (unit is not None or "time" in name.lower())
        scale = _MS.get((unit[1] or unit[2]).lower(), 1.0) if unit else 1.0
        found.append((name, scale if is_time else 0.0))
    return found if any(unit for _, unit in found) and len(found) > 1 else []
