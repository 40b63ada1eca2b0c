"""Links of PCI Express, as `lspci -vv` and `nvidia-smi -q` print them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.machines.device_rows import BUS
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_CLASSES = (
    "3D controller",
    "VGA compatible controller",
    "Processing accelerators",
    "Infiniband controller",
    "Ethernet controller",
    "Network controller",
    "Non-Volatile memory controller",
    "PCI bridge",
)
PCIE_MARKS = (
    b"LnkSta:",
    b"LnkCap:",
    b"GPU Link Info",
    *(f" {name}: ".encode() for name in _CLASSES),
)
# Lines of `nvidia-smi -q` behind the one that begins what it tells of the link.
_LINES = 16

_DEVICE = re.compile(
    r"^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (" + "|".join(_CLASSES) + "): "
)
_CAP = re.compile(r"LnkCap:.{0,40}?Speed ([\d.]{1,6})GT/s.{0,20}?, Width x(\d{1,2})\b")
_STA = re.compile(
    r"LnkSta:\s{0,4}Speed ([\d.]{1,6})GT/s( \(downgraded\))?.{0,20}?, Width x(\d{1,2})\b"
    r"( \(downgraded\))?"
)
_WIDTH = re.compile(r"^\s{4,32}(Max|Current)\s{1,40}: (\d{1,2})x\s*$")


class PcieReader:
    """Remembers the device whose lines these are."""

    def __init__(self) -> None:
        self._bus = self._class = ""
        self._most: tuple[float, int] | None = None
        self._left = self._width = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may tell a width."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the link that it tells of."""
        text = line.text
        if self._left:
            self._left -= 1
            yield from self._read_width(line, row)
        if not is_mark:
            return
        if (match := _DEVICE.match(text)) or (match := BUS.match(text)):
            self._bus, self._most, self._left = match[1], None, 0
            self._class = match[2] if match.re is _DEVICE else _CLASSES[0]
        elif match := _CAP.search(text):
            self._most = float(match[1]), int(match[2])
        elif match := _STA.search(text):
            yield from self._read_state(line, row, match)
        elif "GPU Link Info" in text:
            self._left, self._width = _LINES, 0

    def _read_state(self, line: LogLine, row: int, match: re.Match[str]) -> Iterator[TabledSeen]:
        most, self._most = self._most, None
        speed, width = float(match[1]), int(match[3])
        groups = {"bus": self._bus, "class": self._class, "width": str(width), "speed": match[1]}
        if most is not None:
            groups |= {"most": str(most[1]), "most_speed": f"{most[0]:g}"}
        is_narrow = bool(match[4]) or (most is not None and width < most[1])
        is_slow = bool(match[2]) or (most is not None and speed < most[0])
        groups |= {"narrow": "1" * is_narrow, "slow": "1" * is_slow}
        yield TabledSeen("table.pcie", row, line, groups)

    def _read_width(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        match = _WIDTH.match(line.text)
        if match is None:
            return
        if match[1] == "Max":
            self._width = int(match[2])
            return
        width, most, self._left = int(match[2]), self._width, 0
        groups = {"bus": self._bus, "class": _CLASSES[0], "width": str(width), "most": str(most)}
        groups |= {"narrow": "1" * (width < most), "slow": ""}
        yield TabledSeen("table.pcie", row, line, groups)
