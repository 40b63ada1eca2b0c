"""N411 device-missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.check_rule import CheckRule
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.evidence.finding import Finding


class DeviceMissing(CheckRule):
    """A device that this node should have is missing.

    ## What it means

    The device has fallen off the bus, or its driver does not see it. A job that wants all of them
    fails at its start, or puts two ranks on one.

    ## How it is found

    The devices that the driver tells are compared with those on PCI, and with `device.count` of the
    policy.

    Of texts, the number of devices that people listed or counted on hosts (`nvidia-smi -L | wc -l`,
    `lspci | grep -c`, `torch.cuda.device_count()`), where a rank found no device of its number:
    one host has fewer than another, than its PCI shows, or seven where eight ranks were started.
    Where all hosts have the same number, too many ranks were started: C210.

    ## False alarms

    Devices that are given to a virtual machine or another container.

    ## What to do

    Start the node again; have it repaired when that does not help.
    """

    code = codes.DEVICE_MISSING
    needs = ("checks", "logs")
    name = "device-missing"
    remedies: ClassVar[tuple[str, ...]] = (
        "`nvidia-smi -L`, `lspci | grep -i nvidia`, `dmesg -T | grep -i xid`",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what checks found, and what texts tell of devices."""
        yield from super().check(scene, policy)
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
