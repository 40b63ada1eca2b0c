"""N412 device-errors."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class DeviceErrors(CheckRule):
    """A device has errors that need a reset or a repair.

    ## What it means

    Memory that could not be corrected, rows that could not be remapped, a driver that does not
    answer or that asks for a reset. Jobs fail on it, or compute wrongly.

    ## How it is found

    The driver (NVML) is asked for its recovery action, uncorrected errors of memory and remapped
    rows, by a process of its own with a deadline.

    ## False alarms

    Errors since boot of a device that was reset since.

    ## What to do

    Do what the driver asks for.
    """

    code = "N412"
    name = "device-errors"
    remedies: ClassVar[tuple[str, ...]] = (
        "`nvidia-smi -q -d ECC,ROW_REMAPPER`",
        "`nvidia-smi --gpu-reset -i N`, without any process on it",
    )
