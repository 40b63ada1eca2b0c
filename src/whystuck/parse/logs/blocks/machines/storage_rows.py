"""How long reads and writes take, as nfsiostat and iostat print it of mounts and disks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.heads import read_command
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

STORAGE_MARKS = (b"avg RTT (ms)", b"r_await", b"iostat", b" mounted on ")
_MOUNT = re.compile(r"^\s{0,4}(\S{1,200}:/\S{0,200}) mounted on (/\S{0,200}?):?\s{0,4}$")
# `read:  ops/s  kB/s  kB/op  retrans  avg RTT (ms)  avg exe (ms)`, and the figures below it.
_NFS = re.compile(r"^\s{0,8}(read|write):\s{1,40}ops/s\s.{0,200}avg RTT \(ms\)")
_FIGURES = re.compile(
    r"^\s{0,60}(?P<ops>\d{1,9}\.\d{1,4})\s{1,40}(?P<kb>\d{1,9}\.\d{1,4})\s{1,40}\d{1,9}\.\d{1,4}"
    r"\s{1,40}\d{1,9} \(\s?\d{1,3}\.\d{1,2}%\)\s{1,40}(?P<rtt>\d{1,9}\.\d{1,4})\b"
)
_CELLS = re.compile(r"\S+")
_DEVICE = re.compile(r"^[a-z][\w!/-]{1,40}:?$")
_COLUMNS = {"r/s": "reads", "w/s": "writes", "r_await": "read_ms", "w_await": "write_ms"}
_MAX_STRANGERS = 8


class StorageReader:
    """Follows what one of these tools prints."""

    def __init__(self) -> None:
        self._mount = self._which = self._host = ""
        self._columns: list[str] = []
        self._left = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be figures."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the times that it tells."""
        text = line.text
        if is_mark and self._begin(text):
            self._left = _MAX_STRANGERS
            return
        if not self.is_open:
            return
        told = self._read_nfs(text) if self._which else self._read_disk(text)
        if told is None:
            self._left -= any(char.isalnum() for char in text)
            return
        self._left = _MAX_STRANGERS
        yield TabledSeen("table.storage", row, line, told | {"host": line.node or self._host})

    def _begin(self, text: str) -> bool:
        if match := _MOUNT.match(text):
            self._mount, self._which = match[2], ""
        elif match := _NFS.match(text):
            self._which, self._columns = match[1], []
        elif "r_await" in text and text.lstrip().startswith("Device"):
            self._columns, self._which = _CELLS.findall(text), ""
        elif head := read_command(text):
            self._host = head.node
        else:
            return "nfsiostat" in text
        return True

    def _read_nfs(self, text: str) -> dict[str, str] | None:
        match = _FIGURES.match(text)
        if match is None:
            return None
        which, self._which = self._which, ""
        return {"name": self._mount, "which": which, "ops": match["ops"], "ms": match["rtt"]}

    def _read_disk(self, text: str) -> dict[str, str] | None:
        cells = _CELLS.findall(text) if self._columns else []
        if len(cells) != len(self._columns) or not cells or not _DEVICE.match(cells[0]):
            return None
        told = dict(zip(self._columns, cells, strict=True))
        found = {name: _read_number(told.get(column, "")) for column, name in _COLUMNS.items()}
        if None in found.values():
            return None
        reads, writes = float(found["reads"] or 0), float(found["writes"] or 0)
        which = "read" if reads >= writes else "write"
        return {
            "name": cells[0].rstrip(":"),
            "which": which,
            "ops": str(max(reads, writes)),
            "ms": found[f"{which}_ms"] or "0",
            "busy": _read_number(told.get("%util", "")) or "0",
        }


def _read_number(text: str) -> str | None:
    number = text.replace(",", ".")
    return number if number.replace(".", "", 1).isdecimal() and len(number) < 16 else None  # noqa: PLR2004
