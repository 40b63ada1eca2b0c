"""N415 pcie-degraded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.check_rule import CheckRule
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.evidence.finding import Finding


class PcieDegraded(CheckRule):
    """The PCI Express link of a device is narrower or slower than it could be.

    ## What it means

    Copies between host and device, and between devices without NVLink, take twice as long or more.

    ## How it is found

    Width and generation as the driver tells them, against the most that device and slot can do, and
    the number of repeated packets.

    In a log: the width that `lspci -vv`, `nvidia-smi -q` or `--query-gpu=pcie.link.width.current`
    prints, and what the kernel calls `limited by`. Of network cards, which do not sleep, also the
    speed, and of devices in a table that are at work the generation, where that of others is full.
    What is behind a bridge is told by the device itself. Where one rank alone takes longer for work
    of its own, and it has the number of the one device whose link is less, it is named.

    ## False alarms

    Generation and width fall when a device is idle: the generation is not judged then.

    ## What to do

    Plug the card in again, or have the slot repaired.
    """

    code = codes.PCIE_DEGRADED
    needs = ("checks", "logs")
    name = "pcie-degraded"
    remedies: ClassVar[tuple[str, ...]] = ("`nvidia-smi -q | grep -A8 'GPU Link Info'`",)

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what checks found, and what a tool printed in a log."""
        yield from super().check(scene, policy)
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
