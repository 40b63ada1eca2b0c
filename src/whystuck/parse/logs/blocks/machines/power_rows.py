"""How much power the devices of hosts may take, as nvidia-smi prints it.

It is told by columns that somebody asked for, by the list of all devices (`349W / 350W`), and by
the long form (`Power Limit : 350.00 W`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.machines.host_rows import HostRows
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

POWER_MARKS = (b"power.limit", b"Power Limit", b"nvidia-smi", b"NVIDIA-SMI")
_ASKED = re.compile(r"--query-gpu[= ]['\"]?([\w.,]{3,600})")
_COLUMNS = {
    "limit": ("enforced.power.limit", "power.limit"),
    "usual": ("power.default_limit",),
    "clock": ("clocks.sm", "clocks.current.sm", "clocks.gr", "clocks.current.graphics"),
    "index": ("index",),
}
_UNIT = re.compile(r" ?\[[^\]]{1,8}\]$")
_NUMBER = re.compile(r"^\s{0,8}(\d{1,7}(?:\.\d{1,4})?)(?:\s?[A-Za-z%]{1,4})?\s{0,8}$")
# `| N/A   45C    P0   349W / 350W |`, below the row that has the index.
_LISTED = re.compile(r"^\|.{0,24}?\bP\d{1,2}\s{1,16}(?:\d{1,5}W|N/A) ?/ ?(\d{2,5})W\b")
_INDEX = re.compile(r"^\|\s{1,4}(\d{1,3})\s{2,4}[A-Z]")
_LONG = re.compile(
    r"^\s{0,24}(?P<which>(?:Enforced|Default|Current|Requested) )?Power Limit\s{0,30}: "
    r"(?P<watts>\d{1,5}\.\d{1,2}) W"
)
# So many lines that tell nothing end what a command printed.
_MAX_STRANGERS = 3
# The list of all devices has some lines for each.
_MAX_LISTED = 60


class PowerReader:
    """Follows what one command prints, of one host or of several."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._rows = HostRows()
        self._index = ""
        self._left = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the limit that it tells, in watts."""
        text = line.text
        if is_mark and "nvidia-smi" in text:
            self._begin(text)
            return
        if is_mark and "NVIDIA-SMI" in text:
            self._columns, self._index, self._left = [], "", _MAX_LISTED
            return
        if is_mark and "power.limit" in text and (columns := _find_columns(text.split(","))):
            self._columns, self._left = columns, _MAX_STRANGERS
            return
        told = self._read_columns(text) if self._columns else self._read_list(text)
        if told is not None:
            if not self._columns:
                self._left = _MAX_LISTED
            yield TabledSeen(
                "table.power", row, line, {"host": line.node or self._rows.host} | told
            )
        elif self.is_open and not self._rows.read_head(text):
            self._left -= any(char.isalnum() for char in text)

    def _begin(self, text: str) -> None:
        asked = _ASKED.search(text)
        self._columns = _find_columns(asked[1].split(",")) if asked else []
        self._rows.begin(text)
        self._index = ""
        self._left = _MAX_STRANGERS if self._columns else 0 if asked else _MAX_LISTED

    def _read_columns(self, text: str) -> dict[str, str] | None:
        cells = self._rows.cut(text).split(",")
        if len(cells) != len(self._columns):
            return None
        found = {
            name: match[1]
            for name, cell in zip(self._columns, cells, strict=True)
            if name and (match := _NUMBER.match(cell))
        }
        if "limit" not in found:
            return None
        self._left = _MAX_STRANGERS
        return {"index": self._rows.place(), **found}

    def _read_list(self, text: str) -> dict[str, str] | None:
        if match := _INDEX.match(text):
            self._index = match[1]
        elif match := _LISTED.match(text):
            return {"index": self._index or "0", "limit": match[1]}
        elif (match := _LONG.match(text)) and match["which"] in {None, "Current "}:
            return {"index": self._index or "0", "limit": match["watts"]}
        elif text.startswith("GPU 0000"):
            self._index = text[4:24].strip()
        return None


def _find_columns(names: list[str]) -> list[str]:
    """Name the columns that tell something, the others are empty; none where no limit is told."""
    told = [_UNIT.sub("", name.strip()) for name in names]
    found = [next((key for key, words in _COLUMNS.items() if one in words), "") for one in told]
    return found if "limit" in found else []
