"""NVIDIA devices, by NVML: load, memory, power, clocks, errors, links, and whose work they do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from whystuck.agent.metrics.gpu import families as gpu
from whystuck.agent.metrics.gpu.families import Device, GpuTable, LabelsOf, make_sample
from whystuck.agent.metrics.gpu.nvidia_activity import Activity, is_supported
from whystuck.agent.metrics.gpu.nvidia_events import XidWatch
from whystuck.agent.metrics.gpu.nvidia_figures import Links, read_figures
from whystuck.agent.metrics.gpu.processes import uses_library
from whystuck.collect.node.nvidia_driver import DeviceLostError, Driver, DriverLostError
from whystuck.evidence.nodes.metrics import Sample

VENDOR: Final = "nvidia"
_RETRY_S: Final = 300.0
_MAX_DEVICES: Final = 64
_MAX_INSTANCES: Final = 16
_MAX_PROCESSES: Final = 256
_LIBRARY: Final = b"libcuda.so"


@dataclass
class _Card:
    """A device between two rounds; ``activity`` is by instance, "" being the device itself."""

    name: str
    handle: Any
    uuid: str
    has_activity: bool
    """Whether the device has GPM; ``is_active`` when that has given figures."""
    is_active: bool = False
    activity: dict[str, Activity] = field(default_factory=dict)
    links: Links = field(default_factory=Links)


class NvidiaSource:
    """Reads all devices that NVIDIA's driver shows to us.

    Args:
        labels_of: Job and rank of a process.
        table: Where other sources find whose a device is.
        every_s: How often it wants to be asked.

    It opens the driver when it is first asked, and again some minutes after it was gone.
    """

    name = "nvidia"
    families = gpu.GPU_FAMILIES

    def __init__(
        self,
        labels_of: LabelsOf = gpu.no_labels,
        table: GpuTable | None = None,
        *,
        every_s: float = gpu.GPU_EVERY_S,
    ) -> None:
        self.every_s = every_s
        self._labels_of = labels_of
        self._table = table or GpuTable()
        self._driver: Driver | None = None
        self._watch: XidWatch | None = None
        self._cards: list[_Card] = []
        self._unreachable: list[str] = []
        self._devices: dict[str, Device] = {}
        self._round = 0
        self._retry_at_s = 0.0
        self._problem = ""

    @property
    def problem(self) -> str:
        """Why some or all of it is missing; empty when nothing is."""
        told = self._driver.problems if self._driver else ()
        return "; ".join(filter(None, (self._problem, *told)))

    def collect(self) -> Iterable[Sample]:
        """Read all devices now."""
        try:
            driver = self._open()
            if driver is None:
                return []
            driver.begin_round()
            self._find_cards(driver)
            return [*self._read_cards(driver), *self._tell_unreachable()]
        except DriverLostError as error:
            self._give_up(str(error))
            return []

    def _open(self) -> Driver | None:
        if self._driver is None and time.monotonic() >= self._retry_at_s:
            self._driver = Driver()
            self._watch = XidWatch(self._driver, self._watch)
            self._problem = ""
        return self._driver

    def _give_up(self, problem: str) -> None:
        self._problem = problem
        self._retry_at_s = time.monotonic() + _RETRY_S
        self._cards = []
        self._unreachable = []
        self._table.tell({}, frozenset())
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _find_cards(self, driver: Driver) -> None:
        """Take the devices anew when there are more or fewer than before, or some are lost."""
        count = driver.ask("-", "the number of devices", driver.nvml.nvmlDeviceGetCount)
        if count is None or count == len(self._cards):
            return
        before = {card.uuid: card for card in self._cards}
        self._problem = ""
        self._cards = []
        self._unreachable = []
        for index in range(min(count, _MAX_DEVICES)):
            try:
                card = self._make_card(driver, str(index), before)
            except DeviceLostError:
                self._unreachable.append(str(index))
                continue
            if card is not None:
                self._cards.append(card)
        missing = count - len(self._cards)
        if missing:
            self._problem = f"{missing} of {count} devices of NVIDIA cannot be reached"
        kept = {card.uuid for card in self._cards}
        for uuid, card in before.items():
            if uuid not in kept:
                _close_activity(card)

    def _make_card(self, driver: Driver, name: str, before: Mapping[str, _Card]) -> _Card | None:
        nvml = driver.nvml
        handle = driver.ask(name, "its handle", nvml.nvmlDeviceGetHandleByIndex, int(name))
        if handle is None:
            return None
        uuid = driver.ask(name, "its UUID", nvml.nvmlDeviceGetUUID, handle) or ""
        old = before.get(uuid) if uuid else None
        if old is not None and old.name == name:
            return old
        if self._watch is not None:
            self._watch.add(uuid, handle)
        return _Card(name, handle, uuid, is_supported(driver, name, handle))

    def find_buses(self) -> dict[str, str]:
        """Return the bus ids of the devices that were found last, by UUID."""
        driver, found = self._driver, {}
        if driver is not None:
            for card in self._cards:
                with suppress(DeviceLostError, DriverLostError):
                    call = driver.nvml.nvmlDeviceGetPciInfo
                    info = driver.ask(card.name, "its bus", call, card.handle)
                    bus = getattr(info, "busId", "")
                    found[card.uuid] = bus.decode() if isinstance(bus, bytes) else str(bus)
        return found

    def _read_cards(self, driver: Driver) -> list[Sample]:
        if self._watch is not None:
            self._watch.drain()
        self._round += 1
        samples: list[Sample] = []
        found: dict[str, Device] = {}
        for place, card in enumerate(self._cards):
            last = self._devices.get(card.uuid, Device(card.name, card.uuid, VENDOR))
            is_turn = self._round % len(self._cards) == place
            try:
                reader = _CardReader(driver, card, self._labels_of, is_turn=is_turn)
                samples += reader.read()
                found |= reader.found
                samples += self._xids(found[card.uuid])
            except DeviceLostError as error:
                driver.tell(str(error))
                found[card.uuid] = last
                samples += [*make_sample(gpu.UP, last, 0), *self._xids(last)]
        self._devices = found
        profiled = frozenset(card.uuid for card in self._cards if card.is_active)
        self._table.tell(found, profiled)
        return samples

    def _tell_unreachable(self) -> Iterator[Sample]:
        """Tell of devices that were lost before we could ask for their UUID."""
        for name in self._unreachable:
            yield from make_sample(gpu.UP, Device(name, "", VENDOR), 0)

    def _xids(self, device: Device) -> Iterator[Sample]:
        counts, last = (self._watch.counts, self._watch.last) if self._watch else ({}, {})
        if device.uuid in counts:
            yield from make_sample(gpu.XID_ERRORS, device, counts[device.uuid])
        if device.uuid in last:
            yield from make_sample(gpu.LAST_XID, device, last[device.uuid])


class _CardReader:
    """Reads one device once; ``found`` are it and its instances, with whose they are."""

    def __init__(self, driver: Driver, card: _Card, labels_of: LabelsOf, *, is_turn: bool) -> None:
        self._driver = driver
        self._card = card
        self._labels_of = labels_of
        self._is_turn = is_turn
        self.found: dict[str, Device] = {}

    def read(self) -> list[Sample]:
        card, driver = self._card, self._driver
        plain = Device(card.name, card.uuid, VENDOR)
        pids = self._processes(card.name, card.handle)
        device = self._own(plain, pids)
        samples = [*make_sample(gpu.UP, device, 1)]
        for family, value, *labels in read_figures(driver, card.name, card.handle):
            samples += make_sample(family, device, value, *labels)
        samples += self._active(device, "", card.handle)
        for family, value, time_ns in card.links.read(
            driver, card.name, card.handle, is_turn=self._is_turn and not card.is_active
        ):
            samples += make_sample(family, device, value, time_ns=time_ns)
        samples += self._of_processes(plain, device, pids)
        samples += self._instances(device)
        return _without_doubles(samples)

    def _processes(self, name: str, handle: object) -> dict[int, int | None]:
        """Return the memory in bytes of each process; None where the driver does not tell it."""
        call = self._driver.nvml.nvmlDeviceGetComputeRunningProcesses
        told = self._driver.ask(name, "its processes", call, handle)
        return {int(one.pid): one.usedGpuMemory for one in (told or [])[:_MAX_PROCESSES]}

    def _own(self, device: Device, pids: Mapping[int, object]) -> Device:
        job, rank = gpu.owner_of(pids, self._labels)
        owned = replace(device, job=job, rank=rank)
        self.found[device.uuid] = owned
        return owned

    def _labels(self, pid: int) -> tuple[str, str]:
        return self._labels_of(pid) if uses_library(pid, _LIBRARY) else ("", "")

    def _of_processes(
        self, plain: Device, device: Device, pids: Mapping[int, int | None]
    ) -> Iterator[Sample]:
        yield from make_sample(gpu.PROCESSES, device, len(pids))
        totals: dict[tuple[str, str], int] = {}
        unknown: set[tuple[str, str]] = set()
        for pid, used in pids.items():
            labels = self._labels(pid)
            if used is None:
                unknown.add(labels)
            elif labels[1]:
                totals[labels] = totals.get(labels, 0) + used
        for (job, rank), total in totals.items():
            if (job, rank) not in unknown:
                yield from make_sample(
                    gpu.PROCESS_MEMORY, replace(plain, job=job, rank=rank), total
                )

    def _active(
        self, device: Device, instance: str, handle: object, number: int = -1
    ) -> Iterator[Sample]:
        """Give what is active inside the device, or inside one of its instances."""
        if not self._card.has_activity:
            return
        nvml = self._driver.nvml
        take: Callable[[Any], object]
        if number < 0:
            take = lambda buffer: nvml.nvmlGpmSampleGet(handle, buffer)  # noqa: E731
        else:
            take = lambda buffer: nvml.nvmlGpmMigSampleGet(  # noqa: E731
                self._card.handle, number, buffer
            )
        activity = self._card.activity.setdefault(
            instance, Activity(self._driver, device.gpu, take)
        )
        for family, value in activity.read():
            self._card.is_active = True
            yield from make_sample(family, device, value)

    def _instances(self, device: Device) -> Iterator[Sample]:
        """Give the memory and activity of each instance of a device that is cut up (MIG)."""
        nvml, card = self._driver.nvml, self._card
        mode = self._driver.ask(card.name, "its MIG mode", nvml.nvmlDeviceGetMigMode, card.handle)
        if mode is None:
            return
        is_cut = mode[0] == nvml.NVML_DEVICE_MIG_ENABLE
        yield from make_sample(gpu.MIG_MODE, device, float(is_cut))
        call = nvml.nvmlDeviceGetMaxMigDeviceCount
        count = self._driver.ask(card.name, "its instances", call, card.handle) if is_cut else 0
        seen: set[str] = set()
        for index in range(min(count or 0, _MAX_INSTANCES)):
            yield from self._instance(index, seen)
        for gone in card.activity.keys() - seen - {""}:
            card.activity.pop(gone).close()

    def _instance(self, index: int, seen: set[str]) -> Iterator[Sample]:
        nvml, driver = self._driver.nvml, self._driver
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(self._card.handle, index)
        except nvml.NVMLError:
            return  # this place is empty
        name = f"{self._card.name}.{index}"
        uuid = driver.ask(name, "its UUID", nvml.nvmlDeviceGetUUID, handle)
        if not uuid:
            return
        pids = self._processes(name, handle)
        plain = Device(name, uuid, VENDOR)
        device = self._own(plain, pids)
        memory = driver.ask(name, "its memory", nvml.nvmlDeviceGetMemoryInfo, handle)
        if memory is not None:
            yield from make_sample(gpu.MEMORY_USED, device, memory.used)
            yield from make_sample(gpu.MEMORY_TOTAL, device, memory.total)
        yield from self._of_processes(plain, device, pids)
        number = driver.ask(name, "its instance", nvml.nvmlDeviceGetGpuInstanceId, handle)
        if number is not None:
            seen.add(uuid)
            yield from self._active(device, uuid, handle, int(number))


def _without_doubles(samples: Sequence[Sample]) -> list[Sample]:
    """Keep the first sample of each series."""
    return list({(one.family.name, one.labels): one for one in reversed(samples)}.values())[::-1]


def _close_activity(card: _Card) -> None:
    with suppress(DeviceLostError, DriverLostError):
        for activity in card.activity.values():
            activity.close()
