"""H104 group-order-cycle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.diagnose.rule_kinds import place_waits, tell_parting, tell_suspects
from whystuck.evidence.finding import Finding
from whystuck.evidence.ranks import name_ranks


class GroupOrderCycle(Rule):
    """Ranks use two or more process groups in different order and wait for each other in a ring.

    ## What it means

    Rank 0 calls an op of group A and then of group B; rank 1 calls B first. Each waits for the
    other in another group, and neither can go on.

    ## How it is found

    Pending ops of all ranks give a graph of who waits for whom. A ring through different groups
    is a deadlock.

    A rank that skips a collective or makes one more leaves such a ring too: a rank that breaks the
    habit of its own earlier steps, or leaves the program of its peers, is reported as H102 or H127
    instead. The finding is `certain` only where both orders are shown: by calls that changed
    places, or by two branches of one `if`. It is `likely` where one line goes through several
    groups, and else `possible` on hosts. On devices it is `possible` when the calls of the ring
    went well before and no rank broke its habit, or the ring buffer has lost what came before.
    Where a thread of a rank failed in the function whose calls the others wait in, it is H120.

    Where no op was recorded, the stacks show the calls, the source their groups, and the
    connections of gloo which ranks share a group. The ranks are named when two branches use the
    groups in opposite orders; otherwise the finding is `possible` and names nobody.

    Of logs, `torchfrtrace` and the counters that watchdogs print tell who waits in which group and
    who has not come: where all who are missing wait in another group, the orders differ. Nobody is
    named. Where the members of groups are shown (`gen_group ranks=[0, 1]`), watchdogs that name the
    group are enough: the ranks are named in a ring of more than two, or where each shows that it
    uses the two groups in the other order (`order: ["gen", "disc"]`), or somebody says which one
    it would call next (`r0 would do the gen one next`).

    Of pasted stacks, comments at the frames say in which group each rank waits (`# group=ep`), and
    the job, its source or the heading of a stack tells the members of each (`ep=[0,1]`, `dp_groups
    = [[0,2],[1,3]]`, `new_group([0, 1])`): a ring of more than two ranks is named. It is
    `possible`, without names, for two ranks, as one may have left out a call, and where only names
    of functions tell the group; unless the source shows that one line goes over a set, whose order
    no two processes share. Ranks that such a line leads to different groups are members of all of
    these.

    ## False alarms

    A collective that only one rank calls on a second group makes the same ring, and so does one
    that a rank leaves out in its first step, when neither source nor peers tell.

    ## What to do

    Use the groups in the same order on all ranks.
    """

    code = codes.GROUP_ORDER_CYCLE
    name = "group-order-cycle"
    shows_ops = True
    needs = ("collectives", "stacks", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        "call the ops of the two groups in the same order on all ranks",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding for a ring of waiting ranks through several groups."""
        yield from tell_parting(self, scene, policy)
        yield from tell_suspects(self, scene, policy)
        if not scene.wait_cycle.edges:
            yield from (tell_case(self, case) for case in scene.story.of(self.code))
        if any(one.code == codes.EXCEPTION_HANGING for one in scene.suspects.explained):
            return  # what failed left the ring
        names = sorted({wait.group.label for wait in scene.wait_cycle.edges})
        if len(names) < 2 or any(wait.is_p2p for wait in scene.wait_cycle.edges):  # noqa: PLR2004 - a ring
            return
        waits = [wait for wait in scene.wait_cycle.all_waits if not wait.is_p2p]
        ranks = sorted({wait.rank for wait in waits})
        steps = ", ".join(
            f"rank {wait.rank} waits in {scene.ops.name_wait(wait)} of group {wait.group.label}"
            for wait in scene.wait_cycle.edges
        )
        yield self.make_finding(
            f"{name_ranks(ranks)} wait for each other in a ring: {steps}",
            scene.wait_cycle.confidence,
            Blame(
                ranks=ranks,
                groups=sorted({wait.group.label for wait in waits}),
                victims=sorted(scene.waits.waiting),
                where=place_waits(scene, policy, [*scene.wait_cycle.edges, *waits]),
            ),
            because=[scene.ops.cite_wait(wait) for wait in scene.wait_cycle.edges],
            details={"ring": [wait.rank for wait in scene.wait_cycle.edges], "groups": names},
        )
