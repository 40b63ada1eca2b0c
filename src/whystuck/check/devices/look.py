"""What the driver of any vendor tells of a device, and how vendors are asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Protocol

from whystuck.check.check import Context


@dataclass(frozen=True)
class User:
    """A process on a device, and the memory that it holds there."""

    pid: int
    used_mib: float


@dataclass(frozen=True)
class Trouble:
    """What the driver itself calls wrong with a device; ``because`` is where it says so."""

    text: str
    severity: str = "error"
    because: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    measures: tuple[tuple[str, float], ...] = ()
    details: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Peer:
    """Another device, and why its memory cannot be reached directly; empty where it can."""

    index: str
    refusal: str = ""
    is_switched_off: bool = False


@dataclass(frozen=True)
class DeviceLook:
    """A device at one moment; None is unknown.

    Attributes:
        index: The number that programs know it by.
        name: Its kind.
        memory_bytes: All memory.
        troubles: Errors, and what has to be done about them.
        held_back: What slows its clock down.
        heat_c: The temperature that the vendor's own limits are about.
        users: Processes on it.
        width: Lanes of PCI Express, and the most that device and slot can do.
        replays: Packets of PCI Express that were repeated.
        links: Links to other devices that are up, and those that are not.
        peers: The other devices, where the driver tells whether this one reaches them.
    """

    index: str
    name: str = ""
    memory_bytes: float | None = None
    troubles: tuple[Trouble, ...] = ()
    held_back: tuple[str, ...] = ()
    heat_c: float | None = None
    users: tuple[User, ...] = ()
    width: tuple[int, int] | None = None
    replays: int | None = None
    links: int | None = None
    links_down: int = 0
    peers: tuple[Peer, ...] = ()


class Devices(Protocol):
    """The devices of one vendor, open.

    ``lost`` are those that the driver does not reach, and why; ``problem`` is what it does not
    tell of the others.
    """

    @property
    def indexes(self) -> Sequence[str]:
        """The devices that can be asked."""
        ...

    @property
    def lost(self) -> dict[str, str]:
        """The others, and why not."""
        ...

    @property
    def problem(self) -> str:
        """What cannot be read, in words."""
        ...

    def look(self, index: str) -> DeviceLook:
        """Ask for all of a device.

        Raises:
            DeviceLostError: The driver does not reach it.
        """
        ...


class Vendor:
    """A maker of devices.

    Attributes:
        name: The vendor.
        driver: What is asked, at the begin of a sentence.
        link: What connects its devices.
        missing_remedies: What to do where the driver cannot be asked.
        late_remedies: What to do where it does not answer.
    """

    name: ClassVar[str]
    driver: ClassVar[str]
    link: ClassVar[str]
    missing_remedies: ClassVar[tuple[str, ...]]
    late_remedies: ClassVar[tuple[str, ...]]

    def count_files(self, context: Context) -> int:
        """Return how many devices this node or container has been given, by files of the kernel."""
        raise NotImplementedError

    def open(self) -> AbstractContextManager[Devices]:
        """Open the driver.

        Raises:
            DriverLostError: It cannot be asked.
        """
        raise NotImplementedError
