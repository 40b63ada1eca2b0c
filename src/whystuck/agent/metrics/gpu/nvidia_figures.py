"""The figures of one NVIDIA device that need one call each, and its links."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from whystuck.agent.metrics.gpu import families as gpu
from whystuck.collect.node.nvidia_driver import Driver
from whystuck.evidence.nodes.metrics import MetricFamily

Figure = tuple[Any, ...]
"""A family, its value, and values for its own labels."""

# Bits of nvmlClocksEventReasons, as nvml.h has them. An idle device and clocks that a user has
# set are no trouble, and not shown.
_REASONS: Final = {
    "power_cap": 0x04,
    "hw_slowdown": 0x08,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
}
_MHZ: Final = 1e6
_KIB: Final = 1024.0
_MILLI: Final = 1e-3
_PERCENT: Final = 0.01
_ALL_LINKS: Final = 0xFFFFFFFF


def read_figures(driver: Driver, name: str, handle: object) -> Iterator[Figure]:
    """Give what the driver tells of one device now."""
    yield from _read_load(driver, name, handle)
    yield from _read_power(driver, name, handle)
    yield from _read_clocks(driver, name, handle)
    yield from _read_health(driver, name, handle)


def _read_load(driver: Driver, name: str, handle: object) -> Iterator[Figure]:
    nvml = driver.nvml
    load = driver.ask(name, "its utilisation", nvml.nvmlDeviceGetUtilizationRates, handle)
    if load is not None:
        yield gpu.UTILIZATION, load.gpu * _PERCENT
        yield gpu.MEMORY_BUSY, load.memory * _PERCENT
    memory = driver.ask(name, "its memory", nvml.nvmlDeviceGetMemoryInfo, handle)
    if memory is not None:
        yield gpu.MEMORY_USED, memory.used
        yield gpu.MEMORY_TOTAL, memory.total


def _read_power(driver: Driver, name: str, handle: object) -> Iterator[Figure]:
    nvml = driver.nvml
    for figure, family, call in (
        ("its power", gpu.POWER, nvml.nvmlDeviceGetPowerUsage),
        ("its power limit", gpu.POWER_LIMIT, nvml.nvmlDeviceGetEnforcedPowerLimit),
        ("its energy", gpu.ENERGY, nvml.nvmlDeviceGetTotalEnergyConsumption),
    ):
        value = driver.ask(name, figure, call, handle)
        if value is not None:
            yield family, value * _MILLI
    sensor = nvml.NVML_TEMPERATURE_GPU
    value = driver.ask(name, "its temperature", nvml.nvmlDeviceGetTemperature, handle, sensor)
    if value is not None:
        yield gpu.TEMPERATURE, value
    fields = _read_fields(driver, name, handle, {nvml.NVML_FI_DEV_MEMORY_TEMP: 0})
    for value in fields.values():
        if value > 0:  # some drivers say 0 for a sensor that is not there
            yield gpu.MEMORY_TEMPERATURE, value


def _read_clocks(driver: Driver, name: str, handle: object) -> Iterator[Figure]:
    nvml = driver.nvml
    for figure, family, call, kind in (
        ("its clock", gpu.SM_CLOCK, nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
        ("its top clock", gpu.SM_CLOCK_MAX, nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
        ("its memory clock", gpu.MEMORY_CLOCK, nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
    ):
        value = driver.ask(name, figure, call, handle, kind)
        if value is not None:
            yield family, value * _MHZ
    bits = driver.ask(name, "its throttling", nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if bits is None:  # the name it had in older drivers
        call = nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        bits = driver.ask(name, "its throttling by the old name", call, handle)
    if bits is not None:
        for reason, bit in _REASONS.items():
            yield gpu.THROTTLED, float(bool(bits & bit)), reason


def _read_health(driver: Driver, name: str, handle: object) -> Iterator[Figure]:
    nvml = driver.nvml
    for kind, number in (
        ("corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ("uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    ):
        call = nvml.nvmlDeviceGetTotalEccErrors
        count = driver.ask(name, f"{kind} errors", call, handle, number, nvml.NVML_VOLATILE_ECC)
        if count is not None:
            yield gpu.ECC_ERRORS, count, kind
    rows = driver.ask(name, "its remapped rows", nvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None:
        corrected, uncorrected, is_pending, has_failed = rows
        yield gpu.REMAPPED_ROWS, corrected, "corrected"
        yield gpu.REMAPPED_ROWS, uncorrected, "uncorrected"
        yield gpu.REMAP_PENDING, float(bool(is_pending))
        yield gpu.REMAP_FAILED, float(bool(has_failed))


def _read_fields(
    driver: Driver, name: str, handle: object, wanted: dict[int, int]
) -> dict[int, float]:
    """Return the fields that the driver knows, by number; ``wanted`` are fields and scopes."""
    nvml = driver.nvml
    told = driver.ask(
        name,
        f"fields {sorted(wanted)}",
        nvml.nvmlDeviceGetFieldValues,
        handle,
        list(wanted.items()),
    )
    found = {}
    for one in told or ():
        value = _field_value(one) if one.nvmlReturn == nvml.NVML_SUCCESS else None
        if value is not None:
            found[int(one.fieldId)] = value
    return found


def _field_value(field_value: Any) -> float | None:  # noqa: ANN401 - a structure of ctypes
    """Read the union of nvmlValue_t by its type, in the order of nvmlValueType_t."""
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    if 0 <= field_value.valueType < len(names):
        return float(getattr(field_value.value, names[field_value.valueType], 0.0))
    return None


@dataclass
class Links:
    """What goes over the links of a device. Counters of NVLink become rates between two rounds.

    The driver measures PCIe for 20 ms a call and holds us up meanwhile, so that only the device
    whose turn it is is measured; for the others the last figure stands, with its time.
    """

    counted: dict[int, tuple[float, float]] = field(default_factory=dict)
    measured: dict[str, tuple[MetricFamily, float, int]] = field(default_factory=dict)

    def read(
        self, driver: Driver, name: str, handle: object, *, is_turn: bool
    ) -> Iterator[tuple[MetricFamily, float, int]]:
        """Give families, bytes per second, and when that was measured (0 for now)."""
        nvml = driver.nvml
        families = {
            nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: gpu.NVLINK_TX,
            nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: gpu.NVLINK_RX,
        }
        counters = _read_fields(driver, name, handle, dict.fromkeys(families, _ALL_LINKS))
        now_s = time.monotonic()
        for number, value in counters.items():
            before = self.counted.get(number)
            self.counted[number] = (value, now_s)
            if before is not None and value >= before[0] and now_s > before[1]:
                rate = (value - before[0]) * _KIB / (now_s - before[1])
                yield families[number], rate, 0
        if is_turn:
            self._measure(driver, name, handle)
        yield from self.measured.values()

    def _measure(self, driver: Driver, name: str, handle: object) -> None:
        nvml = driver.nvml
        for figure, family, counter in (
            ("PCIe sent", gpu.PCIE_TX, nvml.NVML_PCIE_UTIL_TX_BYTES),
            ("PCIe received", gpu.PCIE_RX, nvml.NVML_PCIE_UTIL_RX_BYTES),
        ):
            self.measured.pop(figure, None)
            value = driver.ask(name, figure, nvml.nvmlDeviceGetPcieThroughput, handle, counter)
            if value is not None:
                self.measured[figure] = (family, value * _KIB, time.time_ns())
