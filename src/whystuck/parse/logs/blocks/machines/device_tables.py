"""Tables of clocks and heat of devices, as other tools and people draw them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from whystuck.parse.logs.blocks.tables import cells
from whystuck.parse.logs.blocks.tables.column_names import read_name
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

CLOCK_MARKS = (
    *(b"sclk", b"SCLK", b"| clock", b"clock |", b"clock  ", b"clocks  ", b"clk  ", b"clk |"),
    *(b"SM clock", b"sm clock", b"SM clk", b"sm clk", b"(MHz)", b"[MHz]", b" MHz |", b"MHz  "),
    *(b"MHz,", b"_mhz", b"_MHz", b"sm_clock", b"gpu_clock", b"clock,"),
    *(b"GPU clock", b"gpu clock", b"core clock", b"clock\t", b"clock \xe2\x94\x82"),
)
_UNIT = r"(?:[ _]?[(\[]?(?:mhz|ghz|\u00b0?c|%|w)[)\]]?)?"
_COLUMNS = {
    "clock": re.compile(
        rf"(?:(?:sm|gpu|core|gfx|graphics)[ _]?)?(?:clocks?|clk|freq(?:uency)?|[mg]hz){_UNIT}"
        rf"|sclk{_UNIT}",
        re.IGNORECASE,
    ),
    "temperature": re.compile(
        rf"(?:(?:gpu|edge|junction|core)[ _]?)?(?:temp(?:erature)?|t){_UNIT}", re.IGNORECASE
    ),
    "busy": re.compile(
        rf"(?:(?:gpu|sm)[ _]?)?(?:util(?:ization)?|busy|use|load){_UNIT}|(?:gpu|sm) ?%",
        re.IGNORECASE,
    ),
}
_VALUE = re.compile(r"(\d{1,6}(?:\.\d{1,4})?)\s?(ghz|mhz|\u00b0?c|%|w)?", re.IGNORECASE)
_GHZ = 1000.0


class DeviceTableReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._heads: list[tuple[Callable[[str], list[str]], list[str]]] = []
        self._strangers = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._heads)

    def read_row(self, line: LogLine, raw: str, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line, and the same with what stands before it; yield the device of its row."""
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
                yield TabledSeen("table.device", row, line, groups)
                return
        self._strangers += 1
        if self._strangers > MAX_STRANGERS:
            self._heads = []


def _read_heads(text: str) -> list[tuple[Callable[[str], list[str]], list[str]]]:
    found = []
    for way in cells.WAYS:
        columns = [_name(cell) for cell in cells.split_cells(text, way)]
        is_once = all(columns.count(name) <= 1 for name in (*_COLUMNS, "device", "rank"))
        if is_once and "clock" in columns and {"device", "rank"} & {*columns}:
            found.append((way, columns))
    return found


def _name(cell: str) -> str:
    if head := cells.read_head(cell):
        return head
    kind = next((kind for kind, pattern in _COLUMNS.items() if pattern.fullmatch(cell)), "")
    return kind or ("host" if read_name(cell).kind == "host" else "")


def _read_groups(columns: list[str], told: list[str]) -> dict[str, str]:
    """Return what a row tells, nothing where it is no row."""
    row = dict(zip(columns, told, strict=True))
    index, rank = (cells.read_number(row.get(name, "")) for name in ("device", "rank"))
    groups: dict[str, str] = {}
    for name in _COLUMNS:
        if match := _VALUE.fullmatch(row.get(name, "")):
            is_ghz = (match[2] or "").lower() == "ghz"
            groups[name] = str(float(match[1]) * (_GHZ if is_ghz else 1.0))
    if "clock" not in groups or max(index, rank) < 0:
        return {}
    if rank >= 0:
        groups["own"] = str(rank)
    if row.get("host"):
        groups["host"] = row["host"]
    return groups | {"index": str(index if index >= 0 else rank)}
