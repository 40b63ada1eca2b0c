"""N421 pair-failed."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class PairFailed(CheckRule):
    """Two nodes cannot exchange data, or do so far slower than others.

    ## What it means

    A collective is as slow as its slowest link. One that fails keeps the job from starting, or
    stops it later.

    ## How it is found

    `whystuck check --coordinator` lets nodes sum numbers in pairs. Each node has one partner in a
    round. What was slow or failed is tried again in the next round, each with a partner that was
    well. A node whose pairs are all bad is named; of a bad pair whose nodes are both well with
    others, the link between them is. With two nodes, or where nobody is well, the pair is named and
    no node. A pair is slow below a share of the upper quartile of all pairs, or below a figure of
    the policy. `details.pair` has the numbers of the two nodes, or `details.node_rank` that of the
    one; the figure is a bus bandwidth with its definition, n, size and op.

    ## False alarms

    Nodes in different racks with fewer links between them; a node that is busy with something else.
    A pair that left the check is not judged.

    ## What to do

    Leave the node out; for a link, look at cable, switch port and route between the two.
    """

    code = "N421"
    name = "pair-failed"
    remedies: ClassVar[tuple[str, ...]] = (
        "start the job without that node, and run `whystuck check --only nic,fabric` on it",
    )
