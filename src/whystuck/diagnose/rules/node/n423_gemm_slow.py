"""N423 gemm-slow."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class GemmSlow(CheckRule):
    """Matrix products take longer than on others of its kind.

    ## What it means

    Every step waits for this device or host.

    ## How it is found

    The best of some products, against the policy for this kind of device, and against the median of
    three devices or more on this node.

    ## False alarms

    Another program that uses the device or the CPUs at this moment.

    ## What to do

    Look for what holds the device back.
    """

    code = "N423"
    name = "gemm-slow"
    remedies: ClassVar[tuple[str, ...]] = ("`nvidia-smi -q -d PERFORMANCE` or `top` on this node",)
