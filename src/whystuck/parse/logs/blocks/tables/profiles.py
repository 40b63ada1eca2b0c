"""Rows of the host in tables of torch.profiler: time in each op and call of the runtime.

`key_averages().table()` prints them, and below them the time of the host and of the device in all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables import cells
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

PROFILE_MARKS = (b"Self CPU", b" time total: ")
_WIDTH = 1000
_SPLIT = re.compile(r"\s{2,64}")
_NAME = "Name"
_SELF_CPU, _SELF_SHARE, _TOTAL_CPU = ("Self CPU", "Self CPU time"), "Self CPU %", "CPU total"
_CALLS = ("# of Calls", "Number of Calls")
_DEVICE = re.compile(r"Self (?!CPU)[A-Z]\w{1,15}(?: time)?")
_DEVICE_SHARE = re.compile(r"Self (?!CPU)[A-Z]\w{1,15} %")
_TIME = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(us|ms|s)")
_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,4})?)%")
_WHOLE = re.compile(
    r"\bSelf (?P<of>[A-Z]\w{1,15}) time total: (?P<value>\d{1,12}(?:\.\d{1,6})?)(?P<unit>us|ms|s)\b"
)
_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
_MOST_ROWS = 400


class ProfileReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._begin = self._strangers = self._rows = 0
        # Places of columns from the end of a row, as a name may have blanks of its own.
        self._places: dict[str, int] = {}
        self._count = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return self._count > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the row or the sum that it is."""
        text = line.text[:_WIDTH]
        if is_mark and (whole := _WHOLE.search(text)):
            us = float(whole["value"]) * _US[whole["unit"]]
            groups = {"table": str(self._begin), "of": whole["of"], "us": repr(us)}
            yield TabledSeen("table.profile_total", row, line, groups)
            return
        told = _SPLIT.split(text.strip())
        if is_mark and self._read_head(told):
            self._begin, self._strangers, self._rows = row, 0, 0
        elif self._count and not cells.is_drawn(text):
            groups = self._read_cells(told)
            self._strangers = 0 if groups else self._strangers + 1
            self._rows += bool(groups)
            if groups and self._rows <= _MOST_ROWS:
                yield TabledSeen("table.profiled", row, line, groups)
            elif self._strangers > MAX_STRANGERS:
                self._count = 0

    def _read_head(self, told: list[str]) -> bool:
        """Note the columns of a head; return whether it is one."""
        names = {
            "self": next((one for one in _SELF_CPU if one in told), ""),
            "share": _SELF_SHARE if _SELF_SHARE in told else "",
            "total": _TOTAL_CPU if _TOTAL_CPU in told else "",
            "device": next((one for one in told if _DEVICE.fullmatch(one)), ""),
            "device_share": next((one for one in told if _DEVICE_SHARE.fullmatch(one)), ""),
            "calls": next((one for one in _CALLS if one in told), ""),
        }
        if told[0] != _NAME or not names["self"] or not names["calls"]:
            return False
        self._count = len(told)
        self._places = {key: told.index(one) - len(told) for key, one in names.items() if one}
        return True

    def _read_cells(self, told: list[str]) -> dict[str, str]:
        """Return what a row tells, nothing where it is none."""
        if len(told) < self._count or not told[self._places["calls"]].isdecimal():
            return {}
        name = " ".join(told[: len(told) - self._count + 1])
        groups = {"table": str(self._begin), "name": name, "calls": told[self._places["calls"]]}
        for key in ("self", "total", "device"):
            if key in self._places and (match := _TIME.fullmatch(told[self._places[key]])):
                groups[key] = repr(float(match[1]) * _US[match[2]])
        for key in ("share", "device_share"):
            if key in self._places and (match := _SHARE.fullmatch(told[self._places[key]])):
                groups[key] = match[1]
        return groups if "self" in groups else {}
