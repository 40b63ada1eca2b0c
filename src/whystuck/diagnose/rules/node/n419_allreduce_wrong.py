"""N419 allreduce-wrong."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class AllReduceWrong(CheckRule):
    """A collective among processes of this node gives wrong results.

    ## What it means

    Gradients would be wrong without any error. Memory, a device or a link damages data.

    ## How it is found

    Each process gives integers whose sums are exact in float32, and compares every element with the
    sum that it knows: over NCCL with two devices or more, else over gloo.

    ## False alarms

    None are known: the sums do not depend on the order.

    ## What to do

    Take the node out of service.
    """

    code = "N419"
    name = "allreduce-wrong"
    remedies: ClassVar[tuple[str, ...]] = (
        "run `whystuck check --only allreduce,gemm` again, and take the node out of service",
    )
