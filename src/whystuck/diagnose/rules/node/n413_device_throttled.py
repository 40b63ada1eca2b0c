"""N413 device-throttled."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class DeviceThrottled(CheckRule):
    """A device runs slower than it could, for heat or power.

    ## What it means

    Its clock is held back. All ranks wait for the slowest device.

    ## How it is found

    The reasons that the driver gives for its clocks, and the temperature.

    ## False alarms

    The power cap of a busy device is normal and not told. What an administrator has set on purpose.

    ## What to do

    Look after cooling and power.
    """

    code = "N413"
    name = "device-throttled"
    remedies: ClassVar[tuple[str, ...]] = ("`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`",)
