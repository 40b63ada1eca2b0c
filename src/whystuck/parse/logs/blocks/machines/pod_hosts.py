"""On which host each pod is, as `kubectl get pod -o wide` shows it, whole or one column of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

POD_HOST_MARKS = (b" get po", b"NAME  ")
_COMMAND = re.compile(
    r"\b(?:kubectl|oc|k) (?:-\S{1,80} (?:[\w.-]{1,80} )?)?get po(?:ds?)?(?:[ /]|$)"
)
_NAMED = re.compile(
    r"\bget po(?:ds?)?[ /](?:-n \S{1,80} )?(?P<pod>[a-z0-9][a-z0-9.-]{0,200})(?:\s|$)"
)
_GAP = re.compile(r"\s{2,}")
_HOST = re.compile(r"^[a-z0-9][a-z0-9.-]{1,200}$")
_MOST_COLUMNS = 24


class PodHostReader:
    """Follows what one command prints."""

    def __init__(self) -> None:
        self._pod = ""
        self._at = (-1, -1)
        self._left = 0
        self._is_column = False

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the pod and its host that it tells."""
        text = line.text[:2000].strip()
        cells = _GAP.split(text, _MOST_COLUMNS)
        if is_mark and _COMMAND.search(text):
            named = _NAMED.search(text)
            self._pod = named["pod"] if named and "NODE" not in named["pod"] else ""
            self._left, self._at, self._is_column = MAX_STRANGERS, (-1, -1), False
        elif "NAME" in cells and "NODE" in cells:
            self._at = cells.index("NAME"), cells.index("NODE")
            self._left, self._is_column = MAX_STRANGERS, False
        elif self._left and text == "NODE":
            self._is_column = True
        elif self._left and text:
            pod, host = self._read_row(cells)
            if pod and _HOST.match(host):
                self._left = MAX_STRANGERS * (not self._is_column)
                yield TabledSeen("table.pod_host", row, line, {"pod": pod, "host": host})
            else:
                self._left -= 1

    def _read_row(self, cells: list[str]) -> tuple[str, str]:
        if self._is_column:
            return self._pod, cells[0] if len(cells) == 1 else ""
        pod, host = self._at
        return (cells[pod], cells[host]) if 0 <= max(self._at) < len(cells) else ("", "")
