"""Devices of Huawei (Ascend), from what ``npu-smi`` prints; asked in a process that may hang."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from whystuck.check.check import Context
from whystuck.check.devices.look import DeviceLook, Trouble, User, Vendor
from whystuck.collect.node.npu_smi import (
    NpuChip,
    NpuTable,
    find_npu_smi,
    name_chip,
    parse_npu_info,
    parse_npu_values,
    run_bounded,
)
from whystuck.collect.node.nvidia_driver import DeviceLostError, DriverLostError

_NODE = re.compile(r"davinci\d+")
_MIB = 1 << 20
_TIMEOUT_S = 6.0
_ERRORS = "HBM Double Bit Error Count"
# Older products count errors of their plain memory.
_OLD_ERRORS = "DDR Double Bit Error Count"
_PAGES = "HBM Double Bit Isolated Pages Count"
_HEALTH = {"OK": "", "Warning": "warning", "Alarm": "error", "Critical": "error"}
_MOST_PAGES = 64


class Ascend(Vendor):
    """Huawei."""

    name = "Huawei"
    driver = "Huawei's npu-smi"
    link = "HCCS"
    missing_remedies = (
        "`npu-smi info`, `ls /dev/davinci*`: install the driver, or add its tools to PATH",
        "start the container with `--device /dev/davinci0` for each device",
    )
    late_remedies = ("`dmesg -T | grep -i -e davinci -e devdrv`; restart the node",)

    def count_files(self, context: Context) -> int:
        """Return the number of files in ``/dev``."""
        return sum(bool(_NODE.fullmatch(name)) for name in context.list_names("/dev"))

    @contextmanager
    def open(self) -> Iterator[_Opened]:
        """Ask for the table of all chips."""
        tool = find_npu_smi()
        if tool is None:
            raise DriverLostError("npu-smi is not installed")
        try:
            table = parse_npu_info(run_bounded([tool, "info"], _TIMEOUT_S))
        except OSError as error:
            raise DriverLostError(f"npu-smi does not answer: {error}") from None
        yield _Opened(tool, table)


class _Opened:
    """The chips of this node."""

    def __init__(self, tool: str, table: NpuTable) -> None:
        self._tool = tool
        self._table = table
        self._chips = {name_chip(chip, table): chip for chip in table.chips}
        self.indexes = list(self._chips)
        self.lost: dict[str, str] = {}
        self._problem = ""
        self._values: dict[int, list[dict[str, float]]] = {}

    @property
    def problem(self) -> str:
        """What the tool did not tell."""
        unknown = self._table.unknown_lines
        lines = f"{unknown} lines of npu-smi are of no known form" if unknown else ""
        return "; ".join(filter(None, (lines, self._problem)))

    def look(self, index: str) -> DeviceLook:
        """Return what the table has of a chip, and its errors of memory."""
        chip = self._chips[index]
        if not chip.health or chip.health.upper() == "UNKNOWN":
            raise DeviceLostError(f"NPU {index}: npu-smi does not tell its health")
        here = [
            one for one in self._table.processes if (one.npu, one.chip) == (chip.npu, chip.chip)
        ]
        return DeviceLook(
            index=index,
            name=chip.name or "a device of Huawei",
            memory_bytes=chip.memory_mb[1] * _MIB if chip.memory_mb else None,
            troubles=(*_list_health(index, chip), *self._list_errors(index, chip)),
            heat_c=chip.temperature_c,
            users=tuple(User(one.pid, float(one.memory_mb or 0)) for one in here),
        )

    def _list_errors(self, index: str, chip: NpuChip) -> Iterator[Trouble]:
        values = self._find_values(chip)
        count = values.get(_ERRORS, 0.0) or values.get(_OLD_ERRORS, 0.0)
        if count:
            yield Trouble(
                f"device {index} had {count:.0f} errors of memory that were not corrected",
                because=(f"npu-smi info -t ecc -i {chip.npu}",),
                remedies=(
                    f"npu-smi set -t reset -i {chip.npu} -c {chip.chip}   # no process may use it",
                ),
                measures=(("errors", count), ("threshold", 0)),
            )
        if (pages := values.get(_PAGES, 0.0)) > _MOST_PAGES:
            yield Trouble(
                f"{pages:.0f} pages of the memory of device {index} are retired, more than "
                f"{_MOST_PAGES}",
                severity="warning",
                because=(f"npu-smi info -t ecc -i {chip.npu}",),
                remedies=("have the device replaced",),
                measures=(("pages", pages), ("threshold", _MOST_PAGES)),
            )

    def _find_values(self, chip: NpuChip) -> dict[str, float]:
        """Return the counters of a chip; those of all chips of a card are told at once."""
        if chip.npu not in self._values:
            command = [self._tool, "info", "-t", "ecc", "-i", str(chip.npu)]
            try:
                self._values[chip.npu] = parse_npu_values(run_bounded(command, _TIMEOUT_S))
            except OSError as error:
                self._values[chip.npu] = []
                self._problem = f"npu-smi does not tell errors of memory of NPU {chip.npu}: {error}"
        told = self._values[chip.npu]
        chips = [one.chip for one in self._table.chips if one.npu == chip.npu]
        for place, values in enumerate(told):
            number = values.get("Chip ID", chips[place] if place < len(chips) else -1)
            if int(number) == chip.chip:
                return values
        return {}


def _list_health(index: str, chip: NpuChip) -> Iterator[Trouble]:
    severity = _HEALTH.get(chip.health, "warning")
    if severity:
        yield Trouble(
            f"npu-smi calls the health of device {index} {chip.health}",
            severity=severity,
            because=(f"npu-smi info: NPU {chip.npu}, chip {chip.chip}, {chip.bus_id}",),
            remedies=(f"npu-smi info -t health -i {chip.npu}   # has the number of the fault",),
        )
