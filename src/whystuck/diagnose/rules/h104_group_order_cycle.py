"""H104 group-order-cycle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose.algorithms.frames import make_places
from whystuck.diagnose.algorithms.waits import find_cycle
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.diagnose.scene import Scene
from whystuck.evidence.finding import Confidence, Finding
from whystuck.evidence.ranks import name_ranks


class GroupOrderCycle(Rule):
    """Ranks use two or more process groups in different order and wait for each other in a ring.

    ## What it means

    Rank 0 calls an op of group A and then of group B; rank 1 calls B first. Each waits for the
    other in another group, and neither can go on.

    ## How it is found

    Pending ops of all ranks give a graph of who waits for whom. A ring through different groups
    is a deadlock.

    ## False alarms

    A collective that only one rank calls on a second group makes the same ring.

    ## What to do

    Use the groups in the same order on all ranks.
    """

    code = "H104"
    name = "group-order-cycle"
    needs = ("collectives",)
    remedies: ClassVar[tuple[str, ...]] = (
        "call the ops of the two groups in the same order on all ranks",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding for a ring of waiting ranks through several groups."""
        if scene.is_crash or not scene.is_stalled or scene.divergence or scene.suspects:
            return
        targets: dict[int, frozenset[int]] = {}
        for wait in scene.waits:
            targets[wait.rank] = targets.get(wait.rank, frozenset()) | wait.missing
        ring = find_cycle(targets)
        waits = {wait.rank: wait for wait in scene.waits if set(ring) & wait.missing}
        names = sorted({waits[rank].group.label for rank in ring if rank in waits})
        if len(names) < 2 or not set(ring) <= set(waits):  # noqa: PLR2004 - a ring needs two
            return
        where = [
            place
            for rank in ring
            for place in make_places(rank, scene.get_site(waits[rank].row), policy.places_per_rank)
        ]
        steps = ", ".join(
            f"rank {rank} waits in {scene.name_op(waits[rank].row)} of group "
            f"{waits[rank].group.label}"
            for rank in ring
        )
        yield self.make_finding(
            f"{name_ranks(ring)} wait for each other in a ring: {steps}",
            Confidence.CERTAIN,
            Blame(ranks=ring, groups=names, victims=sorted(scene.waiting), where=where),
            because=[
                scene.cite_row(waits[rank].row, f"pending op of rank {rank}") for rank in ring
            ],
            details={"ring": list(ring), "groups": names},
        )
