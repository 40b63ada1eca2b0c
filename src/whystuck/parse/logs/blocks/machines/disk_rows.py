"""How full file systems are, as `df` shows it: the mounts, and which have no room left."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

DISK_MARKS = (b"Mounted on", b" 100% /")
_HEAD = re.compile(
    r"^\s{0,8}Filesystem\s.{0,80}\s(?:I?Use|Capacity).{0,4}\s{1,8}Mounted on\s{0,8}$"
)
_CELL = r"(?:\d[\d.,]{0,17}[KMGTPE]?(?:i?B)?|-)"
# `10.0.0.7:/vol/home  20T  20T  0  100% /home`; a long name stands in a line of its own
_ROW = re.compile(
    rf"^(?:\s{{0,8}}\S.{{0,200}}?)?\s{{1,80}}{_CELL}\s{{1,40}}{_CELL}\s{{1,40}}"
    rf"(?P<left>{_CELL})\s{{1,40}}(?P<share>\d{{1,3}})%\s{{1,8}}(?P<mount>/\S{{0,200}})\s{{0,8}}$"
)
_MAX_STRANGERS = 2
_MOST_ROWS = 256
_FULL = 100
# What is left where there is no room for a file of weights: in blocks of 1 KiB, or with a unit.
_FEW_BLOCKS = 1 << 20
_SMALL = ("K", "M", "KB", "MB", "KiB", "MiB", "-")


class DiskReader:
    """Follows what one `df` prints, or takes the row of a full file system alone."""

    def __init__(self) -> None:
        self._left = self._count = 0

    @property
    def is_open(self) -> bool:
        """Whether the next line may be a row."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the mount that it tells of."""
        if is_mark and _HEAD.match(line.text):
            self._left, self._count = _MAX_STRANGERS, 0
            return
        match = _ROW.match(line.text)
        self._count += 1
        if match is None or self._count > _MOST_ROWS:
            self._left = max(0, self._left - 1)
            return
        is_full = int(match["share"]) == _FULL and _is_little(match["left"])
        groups = {"mount": match["mount"], "full": "yes" if is_full else ""}
        yield TabledSeen("table.disk", row, line, groups)


def _is_little(left: str) -> bool:
    number = left.replace(",", ".").rstrip("KMGTPEiB-") or "0"
    if left.replace(".", "", 1).isdecimal():
        return float(number) < _FEW_BLOCKS
    return left.endswith(_SMALL)
