"""The figures of accelerators, which are the same for all vendors.

Every ratio is from 0 to 1. What a device, its driver or our rights do not give is left out: a
figure that is missing is unknown.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whystuck.evidence.nodes.metrics import MetricFamily, MetricKind, Sample

LabelsOf = Callable[[int], tuple[str, str]]
"""Takes the pid of a process on a device; returns its job and rank, each "" when unknown."""

DEVICE_LABELS: Final = ("gpu", "uuid", "vendor", "job", "rank")
"""Of every figure; ``job`` and ``rank`` are those of the only rank that uses the device."""
GPU_EVERY_S: Final = 10.0


_DEVICE_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "nvidia": ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version"),
    "amd": ("/dev/kfd", "/dev/dxg"),
    "ascend": ("/dev/davinci_manager", "/dev/davinci0"),
}


def has_device(vendor: str) -> bool:
    """Tell whether a driver of ``nvidia``, ``amd`` or ``ascend`` is loaded and shown to us."""
    return any(Path(name).exists() for name in _DEVICE_FILES[vendor])


def no_labels(_pid: int) -> tuple[str, str]:
    """Know nothing of any process."""
    return ("", "")


def _gauge(name: str, text: str, *labels: str) -> MetricFamily:
    return MetricFamily(
        name=f"whystuck_gpu_{name}",
        kind=MetricKind.GAUGE,
        help=text,
        labels=(*DEVICE_LABELS, *labels),
    )


def _counter(name: str, text: str, *labels: str) -> MetricFamily:
    return MetricFamily(
        name=f"whystuck_gpu_{name}",
        kind=MetricKind.COUNTER,
        help=text,
        labels=(*DEVICE_LABELS, *labels),
    )


UP: Final = _gauge("up", "1 when the device answers, 0 when its driver says that it is lost")
UTILIZATION: Final = _gauge("utilization_ratio", "Share of time in which any kernel was running")
MEMORY_BUSY: Final = _gauge(
    "memory_utilization_ratio", "Share of time in which device memory was read or written"
)
MEMORY_USED: Final = _gauge("memory_used_bytes", "Device memory in use, by anybody")
MEMORY_TOTAL: Final = _gauge("memory_total_bytes", "Device memory that there is")
POWER: Final = _gauge("power_watts", "Electrical power that the device draws")
POWER_LIMIT: Final = _gauge("power_limit_watts", "Power above which the device slows down")
ENERGY: Final = _counter("energy_joules_total", "Energy used since the driver was loaded")
SM_CLOCK: Final = _gauge("sm_clock_hertz", "Clock of the compute units")
SM_CLOCK_MAX: Final = _gauge("sm_clock_max_hertz", "Highest clock of the compute units")
MEMORY_CLOCK: Final = _gauge("memory_clock_hertz", "Clock of the device memory")
TEMPERATURE: Final = _gauge("temperature_celsius", "Temperature of the chip")
MEMORY_TEMPERATURE: Final = _gauge("memory_temperature_celsius", "Temperature of device memory")
THROTTLED: Final = _gauge(
    "throttled", "1 while the clock is held down for this reason, 0 while it is not", "reason"
)
ECC_ERRORS: Final = _counter(
    "ecc_errors_total", "Memory errors since the driver was loaded", "kind"
)
REMAPPED_ROWS: Final = _gauge(
    "remapped_rows", "Rows of memory that were replaced by spare ones", "kind"
)
REMAP_PENDING: Final = _gauge("row_remap_pending", "1 when a reset is needed to replace a row")
REMAP_FAILED: Final = _gauge("row_remap_failed", "1 when no spare row was left: replace the device")
XID_ERRORS: Final = _counter(
    "xid_errors_total", "Critical errors (Xid) that the driver has told since we look"
)
LAST_XID: Final = _gauge("last_xid", "Number of the last Xid; not there while there was none")
MIG_MODE: Final = _gauge("mig_enabled", "1 when the device is cut into instances (MIG)")
PROCESSES: Final = _gauge("processes", "Processes with work on the device")
PROCESS_MEMORY: Final = _gauge(
    "process_memory_bytes", "Device memory in use by the processes of a rank"
)
PCIE_TX: Final = _gauge("pcie_tx_bytes_per_second", "Bytes from the device over PCIe")
PCIE_RX: Final = _gauge("pcie_rx_bytes_per_second", "Bytes to the device over PCIe")
NVLINK_TX: Final = _gauge(
    "nvlink_tx_bytes_per_second", "Bytes from the device over links to its peers"
)
NVLINK_RX: Final = _gauge(
    "nvlink_rx_bytes_per_second", "Bytes to the device over links to its peers"
)
GRAPHICS_ACTIVE: Final = _gauge(
    "graphics_active_ratio", "Share of time in which any compute or graphics engine was active"
)
SM_ACTIVE: Final = _gauge("sm_active_ratio", "Share of compute units with work, mean over time")
SM_OCCUPANCY: Final = _gauge(
    "sm_occupancy_ratio", "Warps on the compute units, as a share of what they can hold"
)
TENSOR_ACTIVE: Final = _gauge("tensor_active_ratio", "Share of time with work in tensor cores")
DRAM_ACTIVE: Final = _gauge("dram_active_ratio", "Share of the bandwidth of device memory in use")
FP64_ACTIVE: Final = _gauge("fp64_active_ratio", "Share of time with work in FP64 units")
FP32_ACTIVE: Final = _gauge("fp32_active_ratio", "Share of time with work in FP32 units")
FP16_ACTIVE: Final = _gauge("fp16_active_ratio", "Share of time with work in FP16 units")

GPU_FAMILIES: Final = (
    *(UP, UTILIZATION, MEMORY_BUSY, MEMORY_USED, MEMORY_TOTAL, POWER, POWER_LIMIT, ENERGY),
    *(SM_CLOCK, SM_CLOCK_MAX, MEMORY_CLOCK, TEMPERATURE, MEMORY_TEMPERATURE, THROTTLED),
    *(ECC_ERRORS, REMAPPED_ROWS, REMAP_PENDING, REMAP_FAILED, XID_ERRORS, LAST_XID, MIG_MODE),
    *(PROCESSES, PROCESS_MEMORY, PCIE_TX, PCIE_RX, NVLINK_TX, NVLINK_RX, GRAPHICS_ACTIVE),
    *(SM_ACTIVE, SM_OCCUPANCY, TENSOR_ACTIVE, DRAM_ACTIVE, FP64_ACTIVE, FP32_ACTIVE, FP16_ACTIVE),
)
"""All families that any source of accelerators gives."""

_RATIO_SLACK: Final = 1.05


@dataclass(frozen=True)
class Device:
    """One device, or one instance of it: its labels."""

    gpu: str
    uuid: str
    vendor: str
    job: str = ""
    rank: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Its values for `DEVICE_LABELS`."""
        return (self.gpu, self.uuid, self.vendor, self.job, self.rank)


def make_sample(
    family: MetricFamily, device: Device, value: float, *labels: str, time_ns: int = 0
) -> Iterator[Sample]:
    """Give a sample, or none when the value cannot be: not finite, negative, or a ratio above 1.

    Drivers have special numbers for "not known"; read as figures these are absurd.
    """
    if not math.isfinite(value) or value < 0:
        return
    if family.name.endswith("_ratio"):
        if value > _RATIO_SLACK:
            return
        value = min(1.0, value)
    yield Sample(
        family=family, value=float(value), labels=(*device.labels, *labels), time_ns=time_ns
    )


def owner_of(pids: Mapping[int, object], labels_of: LabelsOf) -> tuple[str, str]:
    """Return job and rank of the only rank among the processes of a device, else what they share.

    Where several ranks share a device, no figure of it is that of one of them.
    """
    found = {labels for pid in pids if any(labels := labels_of(pid))}
    ranks = {labels for labels in found if labels[1]}
    if len(ranks) == 1:
        return next(iter(ranks))
    jobs = {job for job, _ in found}
    return (next(iter(jobs)) if len(jobs) == 1 else "", "")


class GpuTable:
    """What sources of one node tell each other of its devices, by UUID; safe to share by threads.

    The driver knows the processes of a device, and so its rank; an exporter does not.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._devices: dict[str, Device] = {}
        self._profiled: frozenset[str] = frozenset()

    def tell(self, devices: Mapping[str, Device], profiled: frozenset[str]) -> None:
        """Replace what is known; ``profiled`` have figures of what is active inside them."""
        with self._lock:
            self._devices, self._profiled = dict(devices), profiled

    def find(self, uuid: str) -> Device | None:
        """Return the device that the driver knows by this UUID."""
        with self._lock:
            return self._devices.get(uuid)

    def is_profiled(self, uuid: str) -> bool:
        """Whether the driver itself gives the figures of what is active inside a device."""
        with self._lock:
            return uuid in self._profiled
