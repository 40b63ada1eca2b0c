"""N415 pcie-degraded."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class PcieDegraded(CheckRule):
    """The PCI Express link of a device is narrower or slower than it could be.

    ## What it means

    Copies between host and device, and between devices without NVLink, take twice as long or more.

    ## How it is found

    Width and generation as the driver tells them, against the most that device and slot can do, and
    the number of repeated packets.

    ## False alarms

    Generation and width fall when a device is idle: the generation is not judged.

    ## What to do

    Plug the card in again, or have the slot repaired.
    """

    code = "N415"
    name = "pcie-degraded"
    remedies: ClassVar[tuple[str, ...]] = ("`nvidia-smi -q | grep -A8 'GPU Link Info'`",)
