"""What the driver of a node's GPUs told at a stall: ``devices.json``, and the table of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

DEVICES_FILE: Final = "devices.json"
MAX_DEVICES: Final = 1024
MAX_LOOKS: Final = 8

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Amount = Annotated[float, Meta(ge=0.0, le=1e18)]
Name = Annotated[str, Meta(max_length=128)]
Ranks = Annotated[list[Annotated[int, Meta(ge=0, le=1 << 31)]], Meta(max_length=1024)]


class DeviceLook(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One look at a device, in base units (watts, hertz, bytes, degrees Celsius).

    What the driver does not tell is None. ``utilization`` is the share of time with any kernel;
    ``sm_active``, ``sm_occupancy``, ``tensor_active`` and ``dram_active`` are of GPM, which
    devices have since Hopper. Of errors, ``xid_errors`` counts those since the first look, the
    others those since the driver was loaded. ``is_lost``: the driver no longer reaches it.
    """

    utilization: Share | None = None
    memory_utilization: Share | None = None
    power: Amount | None = None
    power_limit: Amount | None = None
    sm_clock: Amount | None = None
    sm_clock_max: Amount | None = None
    memory_clock: Amount | None = None
    temperature: Amount | None = None
    memory_used: Amount | None = None
    memory_total: Amount | None = None
    sm_active: Share | None = None
    sm_occupancy: Share | None = None
    tensor_active: Share | None = None
    dram_active: Share | None = None
    ecc_corrected: Amount | None = None
    ecc_uncorrected: Amount | None = None
    row_remap_failed: bool = False
    xid_errors: Amount | None = None
    last_xid: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    throttled: Annotated[list[Name], Meta(max_length=32)] = []
    is_lost: bool = False


class DeviceEntry(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A device, or an instance of one; ``index`` is its number at the driver.

    ``bus`` is where it is in the node, as the kernel's log names it. ``ranks`` use it: by their
    processes, or where ``is_guessed`` by their environment (``CUDA_VISIBLE_DEVICES`` and
    ``LOCAL_RANK``).
    """

    index: Name = ""
    uuid: Name = ""
    bus: Name = ""
    ranks: Ranks = []
    is_guessed: bool = False
    looks: Annotated[list[DeviceLook], Meta(max_length=MAX_LOOKS)] = []


class DevicesRecord(msgspec.Struct, kw_only=True, frozen=True):
    """``devices.json``: the devices of a node, looked at when a job stood still."""

    node: Name = ""
    taken_ns: int = 0
    devices: Annotated[list[DeviceEntry], Meta(max_length=MAX_DEVICES)] = []


class DevicesAnswer(msgspec.Struct, kw_only=True, frozen=True):
    """What the process that asks the driver prints; ``problem`` is why something is missing."""

    devices: Annotated[list[DeviceEntry], Meta(max_length=MAX_DEVICES)] = []
    problem: Annotated[str, Meta(max_length=4096)] = ""


@dataclass(frozen=True)
class DeviceState:
    """A device of a node as the driver told it; ``row`` is its place in the file."""

    node: str
    entry: DeviceEntry
    artifact: str = ""
    row: int = 0


@dataclass(frozen=True)
class RunningKernel:
    """A kernel that the device of a rank was running when it was dumped; ``row`` is its line."""

    rank: int
    device: int
    name: str
    status: str
    artifact: str = ""
    row: int = 0
