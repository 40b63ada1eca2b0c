"""Huawei's Ascend devices, from what ``npu-smi`` prints."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from whystuck.agent.metrics.gpu import families as gpu
from whystuck.agent.metrics.gpu.families import Device, LabelsOf, make_sample
from whystuck.agent.metrics.gpu.processes import uses_library
from whystuck.collect.node.npu_smi import (
    NpuChip,
    NpuTable,
    find_npu_smi,
    name_chip,
    parse_npu_info,
    parse_npu_values,
    run_bounded,
)
from whystuck.evidence.nodes.metrics import MetricFamily, Sample

VENDOR: Final = "ascend"
# The tool needs about a second of CPU time a call.
ASCEND_EVERY_S: Final = 30.0
_LIBRARY: Final = b"libascendcl"
_MB: Final = float(1 << 20)
_PERCENT: Final = 0.01
_HEALTH: Final = {"OK": 1.0, "Warning": 1.0, "Alarm": 1.0, "Critical": 0.0}
# Figures of `-t usages` and `-t common` that the table does not have; names of several versions.
_MORE: Final[dict[str, tuple[MetricFamily, float]]] = {
    "HBM Bandwidth Usage Rate(%)": (gpu.DRAM_ACTIVE, _PERCENT),
    "Aicube Usage Rate(%)": (gpu.TENSOR_ACTIVE, _PERCENT),
    "Aicore curFreq(MHZ)": (gpu.SM_CLOCK, 1e6),
    "AICore CurFreq(MHZ)": (gpu.SM_CLOCK, 1e6),
    "Aicore Freq(MHZ)": (gpu.SM_CLOCK_MAX, 1e6),
    "HBM Temperature(C)": (gpu.MEMORY_TEMPERATURE, 1.0),
}


class AscendSource:
    """Reads all devices that ``npu-smi`` shows.

    Args:
        labels_of: Job and rank of a process.
        every_s: How often it wants to be asked.
    """

    name = "ascend"
    families = (
        *(gpu.UP, gpu.UTILIZATION, gpu.MEMORY_USED, gpu.MEMORY_TOTAL, gpu.POWER),
        *(gpu.TEMPERATURE, gpu.MEMORY_TEMPERATURE, gpu.SM_CLOCK, gpu.SM_CLOCK_MAX),
        *(gpu.PROCESSES, gpu.PROCESS_MEMORY, gpu.DRAM_ACTIVE, gpu.TENSOR_ACTIVE),
    )

    def __init__(
        self, labels_of: LabelsOf = gpu.no_labels, *, every_s: float = ASCEND_EVERY_S
    ) -> None:
        self.every_s = every_s
        self._labels_of = labels_of
        self._round = 0
        self._problem = ""
        self._more: dict[tuple[int, int], tuple[dict[str, float], int]] = {}

    @property
    def problem(self) -> str:
        """Why some or all of it is missing; empty when nothing is."""
        return self._problem

    def collect(self) -> Iterable[Sample]:
        """Ask ``npu-smi`` now; returns after some seconds at most."""
        tool = find_npu_smi()
        if tool is None:
            self._problem = "npu-smi is not installed"
            return []
        try:
            table = parse_npu_info(run_bounded([tool, "info"]))
        except OSError as error:
            self._problem = f"npu-smi does not answer: {error}"
            return []
        self._problem = ""
        if not table.chips:
            self._problem = "npu-smi shows no device"
        elif table.unknown_lines:
            self._problem = (
                f"{table.unknown_lines} lines of npu-smi {table.version} are of no known form"
            )
        self._ask_more(tool, table)
        return [sample for chip in table.chips for sample in self._convert(chip, table)]

    def _ask_more(self, tool: str, table: NpuTable) -> None:
        """Read the figures that the table has not of one device; the next round takes the next."""
        npus = sorted({chip.npu for chip in table.chips})
        if not npus:
            return
        npu = npus[self._round % len(npus)]
        self._round += 1
        try:
            texts = [run_bounded([tool, "info", "-t", t, "-i", str(npu)]) for t in _TYPES]
        except OSError as error:
            self._problem = f"npu-smi does not tell more of device {npu}: {error}"
            return
        chips = [chip.chip for chip in table.chips if chip.npu == npu]
        for text in texts:
            for place, values in enumerate(parse_npu_values(text)):
                number = int(values.get("Chip ID", chips[place] if place < len(chips) else -1))
                before = self._more.get((npu, number), ({}, 0))[0] if text is texts[1] else {}
                self._more[npu, number] = ({**before, **values}, time.time_ns())

    def _convert(self, chip: NpuChip, table: NpuTable) -> Iterator[Sample]:
        here = [p for p in table.processes if (p.npu, p.chip) == (chip.npu, chip.chip)]
        labels = {process.pid: self._labels(process.pid) for process in here}
        plain = Device(name_chip(chip, table), chip.bus_id, VENDOR)
        job, rank = gpu.owner_of(labels, lambda pid: labels[pid])
        device = replace(plain, job=job, rank=rank)
        used, total = chip.memory_mb or (None, None)
        figures: tuple[tuple[MetricFamily, float | None], ...] = (
            (gpu.UP, _HEALTH.get(chip.health)),
            (gpu.UTILIZATION, _times(chip.aicore_percent, _PERCENT)),
            (gpu.MEMORY_USED, _times(used, _MB)),
            (gpu.MEMORY_TOTAL, _times(total, _MB)),
            (gpu.POWER, chip.power_w),
            (gpu.TEMPERATURE, chip.temperature_c),
            (gpu.PROCESSES, float(len(here))),
        )
        for family, value in figures:
            if value is not None:
                yield from make_sample(family, device, value)
        values, time_ns = self._more.get((chip.npu, chip.chip), ({}, 0))
        for name, (family, factor) in _MORE.items():
            if name in values:
                yield from make_sample(family, device, values[name] * factor, time_ns=time_ns)
        memory: dict[tuple[str, str], float] = {}
        for process in here:
            owner = labels[process.pid]
            if owner[1] and process.memory_mb is not None:
                memory[owner] = memory.get(owner, 0.0) + process.memory_mb * _MB
        for (job, rank), value in memory.items():
            yield from make_sample(gpu.PROCESS_MEMORY, replace(plain, job=job, rank=rank), value)

    def _labels(self, pid: int) -> tuple[str, str]:
        return self._labels_of(pid) if uses_library(pid, _LIBRARY) else ("", "")


_TYPES: Final = ("usages", "common")


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
