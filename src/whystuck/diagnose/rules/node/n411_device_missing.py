"""N411 device-missing."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class DeviceMissing(CheckRule):
    """A device that this node should have is missing.

    ## What it means

    The device has fallen off the bus, or its driver does not see it. A job that wants all of them
    fails at its start, or puts two ranks on one.

    ## How it is found

    The devices that the driver tells are compared with those on PCI, and with `device.count` of the
    policy.

    ## False alarms

    Devices that are given to a virtual machine or another container.

    ## What to do

    Start the node again; have it repaired when that does not help.
    """

    code = "N411"
    name = "device-missing"
    remedies: ClassVar[tuple[str, ...]] = (
        "`nvidia-smi -L`, `lspci | grep -i nvidia`, `dmesg -T | grep -i xid`",
    )
