"""N412 device-errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.check_rule import CheckRule
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.evidence.finding import Finding


class DeviceErrors(CheckRule):
    """A device has errors that need a reset or a repair.

    ## What it means

    Memory that could not be corrected, rows that could not be remapped, a driver that does not
    answer or that asks for a reset. Jobs fail on it, or compute wrongly.

    ## How it is found

    The driver (NVML) is asked for its recovery action, uncorrected errors of memory and remapped
    rows, by a process of its own with a deadline. Of texts: a device that `nvidia-smi` cannot read,
    errors that were not corrected, rows that were not replaced, and a failed test of `dcgmi diag`.

    ## False alarms

    Errors since boot of a device that was reset since.

    ## What to do

    Do what the driver asks for.
    """

    code = codes.DEVICE_ERRORS
    needs = ("checks", "logs")
    name = "device-errors"
    remedies: ClassVar[tuple[str, ...]] = (
        "`nvidia-smi -q -d ECC,ROW_REMAPPER`",
        "`nvidia-smi --gpu-reset -i N`, without any process on it",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what checks found, and what a table in a text shows."""
        yield from super().check(scene, policy)
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
