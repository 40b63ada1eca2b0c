"""Devices of NVIDIA, as their driver (NVML) tells them; asked in a process that may hang."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from whystuck.check.check import Context
from whystuck.check.host.facts import list_accelerators
from whystuck.collect.node.nvidia_driver import DeviceLostError, Driver, DriverLostError

_NODE = re.compile(r"nvidia\d+")
_MOST_LINKS = 36


@dataclass(frozen=True)
class Opened:
    """The devices of this node: ``handles`` by number, and why some of them cannot be asked."""

    driver: Driver
    handles: dict[int, Any] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)

    def ask(self, index: int, call: str, *arguments: object) -> Any:  # noqa: ANN401 - of ctypes
        """Return what a function of NVML tells of a device; None when it does not."""
        function = getattr(self.driver.nvml, call)
        return self.driver.ask(str(index), call, function, self.handles[index], *arguments)

    def ask_field(self, index: int, number: int) -> int | None:
        """Return a field of a device; None when the driver does not know it."""
        told = self.ask(index, "nvmlDeviceGetFieldValues", [number])
        for one in told or ():
            if one.nvmlReturn == self.driver.nvml.NVML_SUCCESS:
                return int(one.value.uiVal)
        return None

    def count_links(self, index: int) -> int:
        """Return how many links of NVLink are up."""
        states = (
            self.driver.ask(
                f"{index} link {link}",
                "its state",
                self.driver.nvml.nvmlDeviceGetNvLinkState,
                self.handles[index],
                link,
            )
            for link in range(_MOST_LINKS)
        )
        return sum(state == self.driver.nvml.NVML_FEATURE_ENABLED for state in states)


def count_nodes(context: Context) -> int:
    """Return how many devices this node or container has been given: the files in ``/dev``.

    One that has fallen off the bus keeps its file; in a container, other devices of the host have
    none.
    """
    return sum(bool(_NODE.fullmatch(name)) for name in context.list_names("/dev"))


def why_no_device(context: Context) -> str:
    """Return why there is nothing to ask; empty where there is."""
    is_there = count_nodes(context) or "NVIDIA" in list_accelerators(context)
    if is_there or context.policy.device.count:
        return ""
    try:
        with open_devices() as opened:
            return "" if opened.handles else "this node has no device of NVIDIA"
    except DriverLostError:
        return "this node has no device of NVIDIA"


@contextmanager
def open_devices() -> Iterator[Opened]:
    """Open the driver, and all devices that it reaches.

    Raises:
        DriverLostError: It cannot be asked.
    """
    driver = Driver()
    opened = Opened(driver)
    try:
        count = driver.ask("", "the number of devices", driver.nvml.nvmlDeviceGetCount) or 0
        for index in range(count):
            try:
                call = driver.nvml.nvmlDeviceGetHandleByIndex
                handle = driver.ask(str(index), "its handle", call, index)
                if handle is not None:
                    opened.handles[index] = handle
            except DeviceLostError as error:
                opened.lost[index] = str(error)
        yield opened
    finally:
        driver.close()
