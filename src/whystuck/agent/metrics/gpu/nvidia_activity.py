"""What is active inside NVIDIA devices since Hopper: GPM, figures between two looks.

These are the figures that DCGM reads as ``DCGM_FI_PROF_*``. GPM needs neither root nor a service,
and does not keep others from profiling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from whystuck.agent.metrics.gpu import families
from whystuck.collect.node.nvidia_driver import Driver
from whystuck.evidence.nodes.metrics import MetricFamily

_PERCENT: Final = 0.01
_MIB: Final = float(1 << 20)
# Number of the metric in nvml.h, the family, and what its values are multiplied with.
_METRICS: Final[tuple[tuple[str, MetricFamily, float], ...]] = (
    ("GRAPHICS_UTIL", families.GRAPHICS_ACTIVE, _PERCENT),
    ("SM_UTIL", families.SM_ACTIVE, _PERCENT),
    ("SM_OCCUPANCY", families.SM_OCCUPANCY, _PERCENT),
    ("ANY_TENSOR_UTIL", families.TENSOR_ACTIVE, _PERCENT),
    ("DRAM_BW_UTIL", families.DRAM_ACTIVE, _PERCENT),
    ("FP64_UTIL", families.FP64_ACTIVE, _PERCENT),
    ("FP32_UTIL", families.FP32_ACTIVE, _PERCENT),
    ("FP16_UTIL", families.FP16_ACTIVE, _PERCENT),
    ("PCIE_TX_PER_SEC", families.PCIE_TX, _MIB),
    ("PCIE_RX_PER_SEC", families.PCIE_RX, _MIB),
    ("NVLINK_TOTAL_TX_PER_SEC", families.NVLINK_TX, _MIB),
    ("NVLINK_TOTAL_RX_PER_SEC", families.NVLINK_RX, _MIB),
)


class Activity:
    """The figures of one device, or of one instance of it, from one call to the next.

    Args:
        driver: Whom to ask.
        name: The device, for what is told of it.
        take: Takes a sample of the device into the buffer that it is given.
    """

    def __init__(self, driver: Driver, name: str, take: Callable[[Any], object]) -> None:
        self._driver = driver
        self._name = name
        self._take = take
        self._before: Any = None
        self._spare: Any = None

    def read(self) -> Iterator[tuple[MetricFamily, float]]:
        """Give the figures since the last call; nothing the first time."""
        now = self._spare or self._ask("GPM", self._driver.nvml.nvmlGpmSampleAlloc)
        if now is None:
            return
        self._spare = now
        if self._ask("GPM", self._take, now) is None:
            return
        before, self._before, self._spare = self._before, now, self._before
        if before is not None:
            yield from self._compare(before, now)

    def close(self) -> None:
        """Free both buffers; the driver must still be open."""
        for buffer in (self._before, self._spare):
            if buffer is not None:
                self._ask("GPM buffer", self._driver.nvml.nvmlGpmSampleFree, buffer)
        self._before = self._spare = None

    def _compare(self, before: object, now: object) -> Iterator[tuple[MetricFamily, float]]:
        nvml = self._driver.nvml
        wanted = [
            (getattr(nvml, f"NVML_GPM_METRIC_{name}", None), family, factor)
            for name, family, factor in _METRICS
        ]
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.sample1, asked.sample2 = before, now
        asked.numMetrics = len(wanted)
        for slot, (number, _, _) in zip(asked.metrics, wanted, strict=False):
            slot.metricId = number or 0
            # A driver that skips one leaves it as it is.
            slot.nvmlReturn = nvml.NVML_ERROR_UNKNOWN
        if self._ask("GPM figures", nvml.nvmlGpmMetricsGet, asked) is None:
            return
        for slot, (number, family, factor) in zip(asked.metrics, wanted, strict=False):
            if number is not None and slot.nvmlReturn == nvml.NVML_SUCCESS:
                yield family, slot.value * factor

    def _ask(self, figure: str, call: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401
        return self._driver.ask(self._name, figure, call, *args)


def is_supported(driver: Driver, name: str, handle: object) -> bool:
    """Tell whether a device has GPM, and its driver lets us use it."""
    told = driver.ask(name, "GPM support", driver.nvml.nvmlGpmQueryDeviceSupport, handle)
    return bool(told is not None and told.isSupportedDevice)
