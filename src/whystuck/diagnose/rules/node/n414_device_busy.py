"""N414 device-busy."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class DeviceBusy(CheckRule):
    """Another process uses a device.

    ## What it means

    A process that is left over from another job, or another user, holds memory of the device and
    its time.

    ## How it is found

    The processes that the driver lists, with more memory than the policy allows.

    ## False alarms

    A device that is shared on purpose, or a monitoring agent.

    ## What to do

    End the process, or take another device.
    """

    code = "N414"
    name = "device-busy"
    remedies: ClassVar[tuple[str, ...]] = (
        "`nvidia-smi` lists the processes; end those that are left over",
    )
