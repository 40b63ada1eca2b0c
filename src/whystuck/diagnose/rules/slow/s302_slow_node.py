"""S302 slow-node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Rule
from whystuck.diagnose.rules.slow.late_words import tell_late
from whystuck.evidence.finding import Finding, Severity


class SlowNode(Rule):
    """Most ranks of one node are late in step after step, and all others wait for them.

    ## What it means

    What the ranks of a node share is slow: its processors, memory, power or cooling, its disk, or
    a job of somebody else on it.

    ## How it is found

    As S301, for several ranks at once: they take longer than all ranks of other nodes, all of them
    are on one node, and they are half of the ranks that it has in the group, or more.

    In logs, it is the host of which all ranks, and no others, take longer for work of their own, by
    a line for each host with the times of its ranks, by a table with a column of hosts, by a table
    of hosts alone, where the others differ by little, or by the scores of a straggler report
    (`Rank=8 Node=n2 Score=0.57`, `StragglerId(rank=8, node='n2')`).

    Of bandwidths of pairs of hosts, in a list, in a matrix or as nccl-tests prints them below
    headings with both names or the list of its devices, it is the host of all slow pairs, where all
    others are fast.

    ## False alarms

    A node whose ranks have work that others do not have, such as the first stage of a pipeline.

    ## What to do

    Compare the node with the others; start the job without it.
    """

    code = codes.SLOW_NODE
    name = "slow-node"
    severity = Severity.WARNING
    needs = ("collectives", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        "compare load, clocks, temperature and throttling of this node with those of another one",
        "start the job without this node, and see whether the time per step is that of the others",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding for each node that the others wait for."""
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
        for late in scene.pace.late_ranks:
            node = scene.pace.find_slow_node(late)
            if node is not None:
                yield tell_late(self, scene, policy, late, node=node)
