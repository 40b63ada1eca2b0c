"""N419 allreduce-wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.check_rule import CheckRule
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.evidence.finding import Finding


class AllReduceWrong(CheckRule):
    """A collective among processes of this node gives wrong results.

    ## What it means

    Gradients would be wrong without any error. Memory, a device or a link damages data.

    ## How it is found

    Each process gives integers whose sums are exact in float32, and compares every element with the
    sum that it knows: over NCCL with two devices or more, else over gloo.

    In a log: what nccl-tests and rccl-tests print of wrong results, in the column `#wrong` or as
    `Out of bounds values : 22 FAILED`. The host is named where the test lists all of its ranks and
    all of them are on one.

    ## False alarms

    None are known: the sums do not depend on the order, and nccl-tests allows for rounding. A
    wrong result of nccl-tests may also be an error of the library.

    ## What to do

    Take the node out of service.
    """

    code = codes.ALLREDUCE_WRONG
    needs = ("checks", "logs")
    name = "allreduce-wrong"
    remedies: ClassVar[tuple[str, ...]] = (
        "run `whystuck check --only allreduce,gemm` again, and take the node out of service",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what checks found, and what a test printed in a log."""
        yield from super().check(scene, policy)
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
