"""AMD devices, by amdsmi: load, memory, power, clocks, errors, and whose work they do."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from whystuck.agent.metrics.gpu import families as gpu
from whystuck.agent.metrics.gpu.families import Device, LabelsOf, make_sample
from whystuck.agent.metrics.gpu.processes import uses_library
from whystuck.collect.node.amd_driver import load_amdsmi, shorten
from whystuck.evidence.nodes.metrics import MetricFamily, Sample

VENDOR: Final = "amd"
_RETRY_S: Final = 300.0
_MAX_DEVICES: Final = 64
_MAX_PROCESSES: Final = 256
_LIBRARY: Final = b"libamdhip64"
_MB: Final = float(1 << 20)
_KB: Final = 1024.0
_MHZ: Final = 1e6
_PERCENT: Final = 0.01
_MICRO: Final = 1e-6
# Limits of power are told in microwatts, and in watts by older versions.
_MAX_WATTS: Final = 1e5
# Temperatures are told in degrees, and in thousandths of one by older versions.
_MAX_CELSIUS: Final = 1000.0
# Counters that grow while the clock is held down, in what amdsmi calls the GPU metrics.
_THROTTLING: Final = {
    "power_cap": "ppt_residency_acc",
    "hw_slowdown": "prochot_residency_acc",
    "hw_thermal": "socket_thm_residency_acc",
    "memory_thermal": "hbm_thm_residency_acc",
}


@dataclass
class _Card:
    """A device; ``before`` are the counters of the round before, with their time."""

    name: str
    handle: Any
    uuid: str
    absent: set[str] = field(default_factory=set)
    before: dict[str, tuple[float, float]] = field(default_factory=dict)


class AmdSource:
    """Reads all devices that AMD's library shows to us.

    Args:
        labels_of: Job and rank of a process.
        every_s: How often it wants to be asked.
    """

    name = "amd"
    families = (
        *(gpu.UP, gpu.UTILIZATION, gpu.MEMORY_BUSY, gpu.MEMORY_USED, gpu.MEMORY_TOTAL, gpu.POWER),
        *(gpu.POWER_LIMIT, gpu.ENERGY, gpu.SM_CLOCK, gpu.SM_CLOCK_MAX, gpu.MEMORY_CLOCK),
        *(gpu.TEMPERATURE, gpu.MEMORY_TEMPERATURE, gpu.THROTTLED, gpu.ECC_ERRORS, gpu.PROCESSES),
        *(gpu.PROCESS_MEMORY, gpu.NVLINK_TX, gpu.NVLINK_RX),
    )

    def __init__(
        self, labels_of: LabelsOf = gpu.no_labels, *, every_s: float = gpu.GPU_EVERY_S
    ) -> None:
        self.every_s = every_s
        self._labels_of = labels_of
        self._smi: Any = None
        self._cards: list[_Card] = []
        self._retry_at_s = 0.0
        self._problem = ""

    @property
    def problem(self) -> str:
        """Why some or all of it is missing; empty when nothing is."""
        return self._problem

    def collect(self) -> Iterable[Sample]:
        """Read all devices now."""
        if self._smi is None and not self._open():
            return []
        samples: list[Sample] = []
        for card in self._cards:
            samples += self._read(card)
        return samples

    def _open(self) -> bool:
        if time.monotonic() < self._retry_at_s:
            return False
        self._retry_at_s = time.monotonic() + _RETRY_S
        smi, self._problem = load_amdsmi()
        if smi is None:
            return False
        try:
            smi.amdsmi_init()
            handles = list(smi.amdsmi_get_processor_handles())[:_MAX_DEVICES]
        except smi.AmdSmiException as error:
            self._problem = f"AMD's driver cannot be asked: {shorten(error)}"
            return False
        self._smi = smi
        self._cards = [_Card(str(index), handle, "") for index, handle in enumerate(handles)]
        for card in self._cards:
            card.uuid = self._ask(card, "UUID", smi.amdsmi_get_gpu_device_uuid) or ""
        return True

    def _ask(self, card: _Card, figure: str, call: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401 - what amdsmi returns
        """Return what ``call`` returns; None, and not asked again, where the device has it not."""
        if figure in card.absent:
            return None
        smi = self._smi
        try:
            return call(card.handle, *args)
        except smi.AmdSmiLibraryException as error:
            code = error.get_error_code()
            wrapper = smi.amdsmi_interface.amdsmi_wrapper
            busy = ("AMDSMI_STATUS_BUSY", "AMDSMI_STATUS_TIMEOUT", "AMDSMI_STATUS_RETRY")
            if code in {getattr(wrapper, name) for name in busy}:
                return None
            card.absent.add(figure)
            if code == wrapper.AMDSMI_STATUS_NO_PERM:
                self._problem = f"we may not read the {figure} of GPU {card.name}"
        except (smi.AmdSmiException, KeyError, ValueError, TypeError):
            card.absent.add(figure)  # a version that tells it in another way
        return None

    def _read(self, card: _Card) -> list[Sample]:
        smi = self._smi
        processes = self._processes(card)
        labels = {pid: self._labels(pid) for pid in processes}
        plain = Device(card.name, card.uuid, VENDOR)
        job, rank = gpu.owner_of(labels, lambda pid: labels[pid])
        device = replace(plain, job=job, rank=rank)
        load = self._ask(card, "load", smi.amdsmi_get_gpu_activity) or {}
        memory = self._ask(card, "memory", smi.amdsmi_get_gpu_vram_usage) or {}
        figures: list[tuple[MetricFamily, object, float]] = [
            (gpu.UTILIZATION, load.get("gfx_activity"), _PERCENT),
            (gpu.MEMORY_BUSY, load.get("umc_activity"), _PERCENT),
            (gpu.MEMORY_USED, memory.get("vram_used"), _MB),
            (gpu.MEMORY_TOTAL, memory.get("vram_total"), _MB),
            *self._power(card),
            *self._clocks(card),
        ]
        samples = [*make_sample(gpu.PROCESSES, device, len(processes))]
        for family, value, factor in figures:
            number = _number(value)
            if number is not None:
                samples += make_sample(family, device, number * factor)
        samples += self._errors(card, device)
        samples += self._metrics(card, device)
        if len(samples) > 1:
            samples += make_sample(gpu.UP, device, 1)
        used: dict[tuple[str, str], float] = {}
        for pid, size in processes.items():
            if labels[pid][1] and size is not None:
                used[labels[pid]] = used.get(labels[pid], 0.0) + size
        for (job, rank), size in used.items():
            samples += make_sample(gpu.PROCESS_MEMORY, replace(plain, job=job, rank=rank), size)
        return samples

    def _processes(self, card: _Card) -> dict[int, float | None]:
        """Return the bytes of device memory that each process uses; None when that is not told."""
        told = self._ask(card, "processes", self._smi.amdsmi_get_gpu_process_list) or []
        found: dict[int, float | None] = {}
        with suppress(KeyError, TypeError):
            for one in list(told)[:_MAX_PROCESSES]:
                found[int(one["pid"])] = _number(one.get("memory_usage", {}).get("vram_mem"))
        return found

    def _labels(self, pid: int) -> tuple[str, str]:
        return self._labels_of(pid) if uses_library(pid, _LIBRARY) else ("", "")

    def _power(self, card: _Card) -> Iterator[tuple[MetricFamily, object, float]]:
        smi = self._smi
        told = self._ask(card, "power", smi.amdsmi_get_power_info) or {}
        # Newer devices tell the one, older ones the other; 0 is that of the wrong one.
        for name in ("socket_power", "current_socket_power", "average_socket_power"):
            if _number(told.get(name)):
                yield gpu.POWER, told[name], 1.0
                break
        cap = _number(
            (self._ask(card, "limit", smi.amdsmi_get_power_cap_info) or {}).get("power_cap")
        )
        if cap:
            yield gpu.POWER_LIMIT, cap, _MICRO if cap > _MAX_WATTS else 1.0
        energy = self._ask(card, "energy", smi.amdsmi_get_energy_count) or {}
        count = _number(energy.get("energy_accumulator"))
        resolution = _number(energy.get("counter_resolution"))
        if count is not None and resolution:
            yield gpu.ENERGY, count * resolution, _MICRO

    def _clocks(self, card: _Card) -> Iterator[tuple[MetricFamily, object, float]]:
        smi = self._smi
        kinds, sensors = smi.AmdSmiClkType, smi.AmdSmiTemperatureType
        call = smi.amdsmi_get_clock_info
        core = self._ask(card, "clock", call, kinds.GFX) or {}
        yield gpu.SM_CLOCK, core.get("clk"), _MHZ
        yield gpu.SM_CLOCK_MAX, core.get("max_clk"), _MHZ
        memory = self._ask(card, "memory clock", call, kinds.MEM) or {}
        yield gpu.MEMORY_CLOCK, memory.get("clk"), _MHZ
        now = smi.AmdSmiTemperatureMetric.CURRENT
        for family, figure, sensor in (
            (gpu.TEMPERATURE, "temperature", sensors.HOTSPOT),
            (gpu.MEMORY_TEMPERATURE, "memory temperature", sensors.VRAM),
        ):
            value = _number(self._ask(card, figure, smi.amdsmi_get_temp_metric, sensor, now))
            if value:
                yield family, value, 1e-3 if value > _MAX_CELSIUS else 1.0

    def _errors(self, card: _Card, device: Device) -> Iterator[Sample]:
        told = self._ask(card, "errors", self._smi.amdsmi_get_gpu_total_ecc_count) or {}
        for kind, name in (
            ("corrected", "correctable_count"),
            ("uncorrected", "uncorrectable_count"),
        ):
            count = _number(told.get(name))
            if count is not None:
                yield from make_sample(gpu.ECC_ERRORS, device, count, kind)

    def _metrics(self, card: _Card, device: Device) -> Iterator[Sample]:
        """Give what follows from counters of this round and the one before."""
        told = self._ask(card, "metrics", self._smi.amdsmi_get_gpu_metrics_info) or {}
        now_s = time.monotonic()
        for reason, name in _THROTTLING.items():
            rate = _rate(card, name, _number(told.get(name)), now_s)
            if rate is not None:
                yield from make_sample(gpu.THROTTLED, device, float(rate > 0), reason)
        for family, name in (
            (gpu.NVLINK_RX, "xgmi_read_data_acc"),
            (gpu.NVLINK_TX, "xgmi_write_data_acc"),
        ):
            links = told.get(name)
            known = [_number(one) for one in links] if isinstance(links, list) else []
            total = sum(one for one in known if one is not None)
            rate = _rate(
                card, name, total if any(one is not None for one in known) else None, now_s
            )
            if rate is not None:
                yield from make_sample(family, device, rate * _KB)


def _rate(card: _Card, name: str, value: float | None, now_s: float) -> float | None:
    """Return how much a counter grew a second; None the first time, and when it began anew."""
    if value is None:
        return None
    before = card.before.get(name)
    card.before[name] = (value, now_s)
    if before is None or value < before[0] or now_s <= before[1]:
        return None
    return (value - before[0]) / (now_s - before[1])


def _number(value: object) -> float | None:
    """Return a figure; amdsmi says "N/A" for what is not known."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value) if value >= 0 else None
