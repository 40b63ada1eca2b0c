"""N413 device-throttled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.check_rule import CheckRule
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.evidence.finding import Finding


class DeviceThrottled(CheckRule):
    """A device runs slower than it could, for heat or power.

    ## What it means

    Its clock is held back. All ranks wait for the slowest device.

    ## How it is found

    The reasons that the driver gives for its clocks, and the temperature. Of a table that
    nvidia-smi printed (`--query-gpu`, `-q -d PERFORMANCE`, `dmon`): the same reasons, or a clock
    far below that of the other devices, or a limit of power far below theirs (`power.limit`,
    `349W / 350W`), of one host or of several. The same of a table that somebody drew: of clocks,
    with the load or the heat. Ranks are named where the text says which device is whose,
    or where the one rank that takes longer for work of its own has the number of the one device.

    ## False alarms

    The power cap of a busy device is normal and not told. What an administrator has set on purpose.

    ## What to do

    Look after cooling and power.
    """

    code = codes.DEVICE_THROTTLED
    needs = ("checks", "logs")
    name = "device-throttled"
    remedies: ClassVar[tuple[str, ...]] = ("`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`",)

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what checks found, and what a table in a log shows."""
        yield from super().check(scene, policy)
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
