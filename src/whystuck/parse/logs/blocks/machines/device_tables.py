"""Tables of clocks and heat of devices, as other tools and people draw them."""

from __future__ import annotations

import re

from whystuck.parse.logs.blocks.tables import cells
from whystuck.parse.logs.blocks.tables.column_names import read_name
from whystuck.parse.logs.blocks.tables.headed import HeadedReader

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


class DeviceTableReader(HeadedReader[list[str]]):
    """Follows one table at a time."""

    name = "table.device"

    def _read_head(self, told: list[str]) -> list[str] | None:
        columns = [_name(cell) for cell in told]
        is_once = all(columns.count(name) <= 1 for name in (*_COLUMNS, "device", "rank"))
        is_head = is_once and "clock" in columns and {"device", "rank"} & {*columns}
        return columns if is_head else None

    def _read_cells(self, head: list[str], told: list[str]) -> list[dict[str, str]]:
        groups = _read_groups(head, told) if len(told) == len(head) else {}
        return [groups] if groups else []


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
