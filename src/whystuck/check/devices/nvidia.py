"""Devices of NVIDIA, as their driver (NVML) tells them; asked in a process that may hang."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from whystuck.check.check import Context
from whystuck.check.devices.look import DeviceLook, Peer, Trouble, User, Vendor
from whystuck.collect.node.nvidia_driver import DeviceLostError, Driver

_NODE = re.compile(r"nvidia\d+")
_MOST_LINKS = 36
_MIB = 1 << 20
# By the numbers of nvmlDeviceGpuRecoveryAction_t.
_ACTIONS = {
    1: ("a reset", "nvidia-smi --gpu-reset -i {index}   # no process may use it"),
    2: ("a restart of the node", "drain the node, and restart it"),
    3: ("an end of peer-to-peer traffic", "end all jobs on this node, then reset the device"),
    4: ("an end of all work, and a reset", "end all jobs on this node, then reset the device"),
}
# Of nvmlClocksEventReasons: idle clocks, clocks that were set and the power cap are no trouble.
_REASONS = {
    0x08: "a slowdown by the hardware",
    0x20: "the driver's limit of heat",
    0x40: "the hardware's limit of heat",
    0x80: "the power supply (power brake)",
}
# nvmlGpuP2PCapsIndex_t: reading. The package has a tuple by that name.
_READ = 0
# By the numbers of nvmlGpuP2PStatus_t; 6 is unknown.
_REFUSALS = {
    0: "",
    1: "the chipset does not support it",
    2: "the device does not support it",
    3: "they are behind different host bridges",
    4: "it is switched off in the driver",
    5: "it is not supported",
}
_SWITCHED_OFF = 4


class Nvidia(Vendor):
    """NVIDIA."""

    name = "NVIDIA"
    driver = "NVIDIA's driver"
    link = "NVLink"
    missing_remedies = (
        "`nvidia-smi`, `lsmod | grep nvidia`: load or install the driver",
        "start the container with `--gpus all`",
    )
    late_remedies = ("`dmesg -T | grep -i -e xid -e nvrm`; restart the node",)

    def count_files(self, context: Context) -> int:
        """Return the number of files in ``/dev``.

        One that has fallen off the bus keeps its file; in a container, other devices of the host
        have none.
        """
        return sum(bool(_NODE.fullmatch(name)) for name in context.list_names("/dev"))

    @contextmanager
    def open(self) -> Iterator[_Opened]:
        """Open the driver, and all devices that it reaches."""
        driver = Driver()
        opened = _Opened(driver)
        try:
            count = driver.ask("", "the number of devices", driver.nvml.nvmlDeviceGetCount) or 0
            for index in range(count):
                opened.find(index)
            yield opened
        finally:
            driver.close()


class _Opened:
    """The devices of this node."""

    def __init__(self, driver: Driver) -> None:
        self.indexes: list[str] = []
        self.lost: dict[str, str] = {}
        self._driver = driver
        self._handles: dict[str, Any] = {}

    @property
    def problem(self) -> str:
        """What the driver did not tell."""
        return "; ".join(self._driver.problems)

    def find(self, number: int) -> None:
        """Open one device."""
        index = str(number)
        try:
            call = self._driver.nvml.nvmlDeviceGetHandleByIndex
            handle = self._driver.ask(index, "its handle", call, number)
        except DeviceLostError as error:
            self.lost[index] = str(error)
        else:
            if handle is not None:
                self._handles[index] = handle
                self.indexes.append(index)

    def look(self, index: str) -> DeviceLook:
        """Ask for all of a device."""
        memory = self._ask(index, "nvmlDeviceGetMemoryInfo")
        width = self._ask(index, "nvmlDeviceGetCurrPcieLinkWidth")
        most = self._ask(index, "nvmlDeviceGetMaxPcieLinkWidth")
        heat = self._ask(index, "nvmlDeviceGetTemperature", self._driver.nvml.NVML_TEMPERATURE_GPU)
        return DeviceLook(
            index=index,
            name=str(self._ask(index, "nvmlDeviceGetName") or "a device of NVIDIA"),
            memory_bytes=memory.total if memory is not None else None,
            troubles=(*self._list_recovery(index), *self._list_memory(index)),
            held_back=self._list_reasons(index),
            heat_c=heat,
            users=self._list_users(index),
            width=(int(width), int(most)) if width is not None and most is not None else None,
            replays=self._ask(index, "nvmlDeviceGetPcieReplayCounter"),
            links=self._count_links(index),
            peers=tuple(self._list_peers(index)),
        )

    def _ask(self, index: str, call: str, *arguments: object) -> Any:  # noqa: ANN401 - of ctypes
        """Return what a function of NVML tells of a device; None when it does not."""
        function = getattr(self._driver.nvml, call)
        return self._driver.ask(index, call, function, self._handles[index], *arguments)

    def _list_recovery(self, index: str) -> Iterator[Trouble]:
        number = getattr(self._driver.nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        told = self._ask(index, "nvmlDeviceGetFieldValues", [number]) if number is not None else ()
        well = self._driver.nvml.NVML_SUCCESS
        action = next((int(one.value.uiVal) for one in told or () if one.nvmlReturn == well), 0)
        if not action:
            return
        what, remedy = _ACTIONS.get(action, (f"recovery action {action}", "restart the node"))
        yield Trouble(
            f"the driver of device {index} asks for {what}",
            because=("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",),
            remedies=(remedy.format(index=index),),
            details=(("action", action),),
        )

    def _list_memory(self, index: str) -> Iterator[Trouble]:
        nvml = self._driver.nvml
        kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        if count := self._ask(index, "nvmlDeviceGetTotalEccErrors", kind, counter):
            yield Trouble(
                f"device {index} had {count} errors of memory that were not corrected",
                because=("counted since the driver was loaded",),
                measures=(("errors", count), ("threshold", 0)),
            )
        rows = self._ask(index, "nvmlDeviceGetRemappedRows")
        if rows is None:
            return
        _, uncorrected, is_pending, has_failed = rows
        if has_failed or is_pending:
            state = "could not be" if has_failed else "wait for a reset to be"
            reset = f"nvidia-smi --gpu-reset -i {index}   # no process may use it"
            yield Trouble(
                f"rows of the memory of device {index} {state} remapped",
                severity="error" if has_failed else "warning",
                because=(f"{uncorrected} rows were remapped for errors that were not corrected",),
                remedies=("have the device replaced",) if has_failed else (reset,),
            )

    def _list_reasons(self, index: str) -> tuple[str, ...]:
        bits = self._ask(index, "nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # the name it had in older drivers
            bits = self._ask(index, "nvmlDeviceGetCurrentClocksThrottleReasons")
        return tuple(text for bit, text in _REASONS.items() if (bits or 0) & bit)

    def _list_users(self, index: str) -> tuple[User, ...]:
        told = self._ask(index, "nvmlDeviceGetComputeRunningProcesses") or ()
        return tuple(User(one.pid, (one.usedGpuMemory or 0) / _MIB) for one in told)

    def _list_peers(self, index: str) -> Iterator[Peer]:
        """Tell which other devices this one reaches, of those of which the driver tells it."""
        call = self._driver.nvml.nvmlDeviceGetP2PStatus
        own = self._handles[index]
        for other, handle in self._handles.items():
            if other != index:
                number = None
                # Which of the two is lost, their own figures tell.
                with suppress(DeviceLostError):
                    number = self._driver.ask(
                        f"{index} to {other}", "whether it is reached", call, own, handle, _READ
                    )
                if number in _REFUSALS:
                    yield Peer(other, _REFUSALS[number], number == _SWITCHED_OFF)

    def _count_links(self, index: str) -> int:
        """Return how many links of NVLink are up."""
        states = (
            self._driver.ask(
                f"{index} link {link}",
                "its state",
                self._driver.nvml.nvmlDeviceGetNvLinkState,
                self._handles[index],
                link,
            )
            for link in range(_MOST_LINKS)
        )
        return sum(state == self._driver.nvml.NVML_FEATURE_ENABLED for state in states)
