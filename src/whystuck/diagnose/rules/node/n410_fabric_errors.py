"""N410 fabric-errors."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class FabricErrors(CheckRule):
    """A port of InfiniBand or RoCE is down, slow, or counts errors.

    ## What it means

    NCCL uses all ports. One that is down, or slower than the others, holds up the whole job.

    ## How it is found

    State, rate and counters in `/sys/class/infiniband` are compared with those of the other ports
    of this node, and with the policy.

    ## False alarms

    A port that is not meant to be connected. Counters from before a repair: clear them with
    `perfquery -R`.

    ## What to do

    Change the cable, or leave the port out.
    """

    code = "N410"
    name = "fabric-errors"
    remedies: ClassVar[tuple[str, ...]] = ("`ibstat` and `perfquery -x` on this node",)
