"""Tables of other tools in logs, row by row: times of ranks, clocks of devices.

Megatron prints the times of each rank below the name of each phase (`--timing-log-option all`);
nvidia-smi prints a line for each device below the names of its columns, or the reasons for its
clocks below the bus id of a device; and ps a line for each process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.lines import LogLine

# One of them is in the first line of each table, or in each line that says something alone.
TABLE_MARKS = (
    b"times across ranks (ms)",
    b"temperature.gpu",
    b"clocks.current",
    b"clocks.sm",
    b"clocks_event_reasons",
    b"clocks_throttle_reasons",
    b"# gpu ",
    b"GPU 0000",
    b"HW Slowdown",
    b"HW Thermal Slowdown",
    b"HW Power Brake Slowdown",
    b"SW Thermal Slowdown",
    b" STAT ",
    b"rank i ",
    b"rank N ",
)
MAX_ROWS = 8192
_MAX_STRANGERS = 2

_PHASE = re.compile(r"^\s{0,8}([A-Za-z][\w/-]{1,60}):\s*$")
_RANK_ROW = re.compile(r"^\s{0,12}rank\s{1,6}(\d{1,7}): (\d{1,12}(?:\.\d{1,6})?)\s*$")
_NUMBER = re.compile(r"^\s*(\d{1,12}(?:\.\d{1,6})?)\s*$")
_BUS = re.compile(r"^GPU (0000[0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_REASON = re.compile(r"^\s*([HS]W (?:Thermal |Power Brake )?Slowdown)\s*: Active\s*$")
_SAME = re.compile(
    r"\brank (?:i|N)\b ?(?:=|==|is|<->|->|uses|on|runs on|sits on) ?"
    r"(?:gpu|cuda|device)[ :_]?(?:i|N)\b",
    re.IGNORECASE,
)
# What columns are called, by release and by option.
_COLUMNS = {
    "index": ("index",),
    "clock": ("clocks.current.sm", "clocks.sm", "clocks.gr", "clocks.current.graphics", "pclk"),
    "temperature": ("temperature.gpu", "gtemp"),
    "busy": ("utilization.gpu", "sm"),
    "reasons": ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
}
_FLAGS = re.compile(r"clocks_(?:event|throttle)_reasons\.((?:hw|sw_thermal)\w*)")
_PS_HEAD = re.compile(r"^[A-Z% ]{0,40}\bPID\s.{0,120}\bSTAT\s.{0,120}\b(?:CMD|COMMAND)\s*$")
_STATE = re.compile(r"^[RSDTtZIXW][<NLsl+]{0,6}$")
_UNIT = re.compile(r" ?\[[^\]]{1,8}\]$")
_VALUE = re.compile(r"^\s*(0x[0-9a-fA-F]{1,16}|\d{1,12}(?:\.\d{1,6})?)(?:\s?[A-Za-z%]{1,4})?\s*$")


@dataclass(slots=True)
class TabledSeen:
    """One row of a table, by the names of its columns."""

    name: str
    row: int
    line: LogLine
    groups: dict[str, str]


class TableReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._times = 0
        self._phase = ""
        self._columns: list[str] = []
        self._split = ""
        self._bus = ""
        self._strangers = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._times or self._columns)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the row that it is."""
        text = line.text
        if is_mark and self._begins(text, row):
            return
        if self._times:
            yield from self._read_time(line, row)
        elif self._split == "ps":
            yield from self._read_process(line, row)
        elif self._columns:
            yield from self._read_device(line, row)
        if not is_mark:
            return
        if match := _BUS.match(text):
            self._bus = match[1]
        elif (match := _REASON.match(text)) and self._bus:
            yield TabledSeen("table.slowdown", row, line, {"bus": self._bus, "reason": match[1]})
        elif _SAME.search(text):
            yield TabledSeen("table.rank_is_device", row, line, {})

    def _begins(self, text: str, row: int) -> bool:
        if "times across ranks (ms)" in text:
            self._times, self._phase, self._columns, self._strangers = row, "", [], 0
            return True
        if text.startswith("# gpu "):
            columns, split = ["index", *text.split()[2:]], ""
        else:
            columns, split = [_UNIT.sub("", part.strip()) for part in text.split(",")], ","
        if _PS_HEAD.match(text):
            self._times, self._columns, self._split, self._strangers = 0, text.split(), "ps", 0
            return True
        known = {name for name, words in _COLUMNS.items() if set(words) & set(columns)}
        is_head = "index" in known and bool(known & {"clock", "reasons", "temperature"})
        is_head = is_head or ("index" in columns and any(map(_FLAGS.match, columns)))
        if is_head:
            self._times, self._columns, self._split, self._strangers = 0, columns, split, 0
        return is_head

    def _read_time(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        told, text = (line.rank, line.task), line.text
        if match := _RANK_ROW.match(text):
            rank, value = int(match[1]), match[2]
        elif match := _NUMBER.match(text):
            # `rank 11: ` is taken for a prefix where the blanks before it were cut off.
            rank, value = next((one for one in told if one != UNKNOWN_RANK), -1), match[1]
        elif match := _PHASE.match(text):
            self._phase, self._strangers = match[1], 0
            return
        else:
            self._end_soon()
            return
        self._strangers = 0
        if self._phase and 0 <= rank <= MAX_RANK:
            groups = {
                "table": str(self._times),
                "phase": self._phase,
                "own": str(rank),
                "ms": value,
            }
            yield TabledSeen("table.time", row, line, groups)

    def _read_device(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        text = line.text
        cells = text.split(self._split) if self._split else text.split()
        if len(cells) != len(self._columns) or text.startswith("#"):
            if not text.startswith("#"):
                self._end_soon()
            return
        told = dict(zip(self._columns, cells, strict=True))
        groups: dict[str, str] = {}
        for name, words in _COLUMNS.items():
            value = next((_VALUE.match(told[word]) for word in words if word in told), None)
            if value is not None:
                groups[name] = value[1]
        flags = [
            match[1]
            for name, cell in told.items()
            if cell.strip() == "Active" and (match := _FLAGS.match(name))
        ]
        if "index" in groups:
            self._strangers = 0
            flagged = {"flags": ",".join(flags)} if flags else {}
            yield TabledSeen("table.device", row, line, groups | flagged)

    def _read_process(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        cells = line.text.split(None, len(self._columns) - 1)
        told = dict(zip(self._columns, cells, strict=False))
        pid, state = told.get("PID", ""), told.get("STAT", "")
        if not pid.isdecimal() or not _STATE.match(state):
            self._end_soon()
            return
        groups = {"pid": pid[:9], "state": state, "command": cells[-1][:200]}
        if (parent := told.get("PPID", "")).isdecimal():
            groups["parent"] = parent[:9]
        yield TabledSeen("table.process", row, line, groups | {"wait": told.get("WCHAN", "")})

    def _end_soon(self) -> None:
        self._strangers += 1
        if self._strangers > _MAX_STRANGERS:
            self._times, self._columns, self._split = 0, [], ""
