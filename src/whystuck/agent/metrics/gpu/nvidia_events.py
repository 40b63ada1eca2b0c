"""Critical errors (Xid) that NVIDIA's driver tells of, counted without ever waiting for one."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from whystuck.collect.node.nvidia_driver import DeviceLostError, Driver

# So many are read in one round: a device that floods us costs no more.
_MAX_EVENTS: Final = 64


class XidWatch:
    """Counts the Xids of devices since it was made; ``last`` holds the number of the last one.

    Its counts go on when the driver had to be opened again: give the old ones as ``since``.
    """

    def __init__(self, driver: Driver, since: XidWatch | None = None) -> None:
        self._driver = driver
        self._names: dict[int, str] = {}
        self.counts: dict[str, int] = dict(since.counts) if since else {}
        """By UUID; a device that cannot tell of errors is not in it."""
        self.last: dict[str, int] = dict(since.last) if since else {}
        self._events: Any = driver.ask("-", "Xid events", driver.nvml.nvmlEventSetCreate)

    def add(self, uuid: str, handle: Any) -> None:  # noqa: ANN401 - a pointer of ctypes
        """Watch a device, where it can be."""
        if self._events is None or uuid in self._names.values():
            return
        nvml = self._driver.nvml
        done: list[int] = []

        def register() -> None:
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
            done.append(1)

        self._driver.ask(uuid, "Xid events", register)
        if done:
            self._names[_address(handle)] = uuid
            self.counts.setdefault(uuid, 0)

    def drain(self) -> None:
        """Count what has happened since the last call; returns at once."""
        if self._events is None or not self._names:
            return
        nvml = self._driver.nvml
        for _ in range(_MAX_EVENTS):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError_Timeout:
                return
            except nvml.NVMLError as error:
                self._fail(error)
                return
            uuid = self._names.get(_address(event.device))
            if uuid and event.eventType == nvml.nvmlEventTypeXidCriticalError:
                self.counts[uuid] += 1
                self.last[uuid] = int(event.eventData)

    def _fail(self, error: Exception) -> None:
        def again() -> None:
            raise error

        try:
            self._driver.ask("-", "the wait for Xid events", again)
        except DeviceLostError:
            return  # whose it is, its own figures tell


def _address(handle: Any) -> int:  # noqa: ANN401 - a pointer of ctypes
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
