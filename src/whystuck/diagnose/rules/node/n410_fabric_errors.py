"""N410 fabric-errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.check_rule import CheckRule
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.evidence.finding import Finding


class FabricErrors(CheckRule):
    """A port of InfiniBand or RoCE is down, slow, or counts errors.

    ## What it means

    NCCL uses all ports. One that is down, or slower than the others, holds up the whole job.

    ## How it is found

    State, rate and counters in `/sys/class/infiniband` are compared with those of the other ports
    of this node, and with the policy.

    Of what `ibstat`, `ibstatus`, `ibv_devinfo` or `rdma link` printed in a log: a port that is not
    active, while others of its kind on the host are, or the same card on another host. One that is
    switched off there alone, or down on all hosts, is not told. And a link of InfiniBand that is
    active with one lane (`1X`), as `ibstatus` or `mlxlink` shows it, or with fewer lanes and half
    the rate of most cards of its host, as `/sys/class/infiniband/*/ports/1/rate` prints it.

    Of counters that `perfquery`, `ethtool -S` or the kernel's files show: a port with 1000 symbol
    or receive errors, 50 recoveries or 10 losses of its link, where most others that are shown
    have less than a hundredth of that. Or one port alone with as many, whose rate is half of that
    of most cards of its host, or less.

    ## False alarms

    A port that is not meant to be connected. Counters from before a repair: clear them with
    `perfquery -R`.

    ## What to do

    Change the cable, or leave the port out.
    """

    code = codes.FABRIC_ERRORS
    needs = ("checks", "logs")
    name = "fabric-errors"
    remedies: ClassVar[tuple[str, ...]] = ("`ibstat` and `perfquery -x` on this node",)

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what checks found, and what a tool printed in a log."""
        yield from super().check(scene, policy)
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
