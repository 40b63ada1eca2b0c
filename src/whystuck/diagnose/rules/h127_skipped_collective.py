"""H127 skipped-collective."""

from __future__ import annotations

from typing import Any, ClassVar

from whystuck.diagnose.algorithms.divergence import Divergence
from whystuck.diagnose.algorithms.ways import Way
from whystuck.diagnose.rule_kinds import DivergenceRule, name_ops, name_place
from whystuck.diagnose.scene import Scene
from whystuck.evidence.collectives import Frame
from whystuck.evidence.ranks import name_ranks


class SkippedCollective(DivergenceRule):
    """A rank did not make a collective that the other members of the group made.

    ## What it means

    From the skipped call on, this rank is one op behind: what it calls next meets the op it
    skipped.

    ## How it is found

    Ops of a group are laid side by side by sequence number. From the first clash (other op,
    other size, or a member that never comes) the call sites are followed back to the first
    one that differs. The rank has the op there that normally comes after it: in its own
    history this call site comes first.

    Hosts of devices run ahead, so that ranks wait far from what went wrong. There the calls of
    a rank, those of all its groups in their order, are compared with its own earlier steps: the
    call that always came, and that the other members made, is the one left out. It is `likely`
    only, when the calls that follow are too few to tell it from one that comes later, in
    another order.

    ## False alarms

    Call sites that differ and meet again are legal and accuse nobody.

    ## What to do

    Do not return or continue before a collective on a condition that only some ranks meet;
    contribute an empty or zero value.
    """

    code = "H127"
    name = "skipped-collective"
    way = Way.SKIPPED
    remedies: ClassVar[tuple[str, ...]] = (
        "let every rank make the call: contribute zeros or an empty value where it has nothing",
        "or let all ranks decide together, with an all_reduce of the condition, to leave it out",
    )

    def describe(self, scene: Scene, divergence: Divergence) -> str:
        """Write the summary."""
        who = name_ranks(divergence.culprits)
        skipped = name_ops(scene, divergence, divergence.others)
        place = name_place(scene, divergence, divergence.others)
        now = name_ops(scene, divergence, divergence.culprits)
        return (
            f"{who} skipped the {skipped} in {place} and went on to {now}; "
            f"the others wait in the {skipped}"
        )

    def find_place(self, scene: Scene, divergence: Divergence) -> dict[int, tuple[Frame, ...]]:
        """Return the call site that each culprit skipped, as its peers made it."""
        peer = next((rank for rank in divergence.others if rank in divergence.rows), None)
        if peer is None:
            return super().find_place(scene, divergence)
        return dict.fromkeys(divergence.culprits, scene.get_site(divergence.rows[peer]))

    def detail(self, scene: Scene, divergence: Divergence) -> dict[str, Any]:
        """Return the fixed keys of this code."""
        return super().detail(scene, divergence) | {
            "skipped": name_place(scene, divergence, divergence.others),
            "went_on_to": name_place(scene, divergence, divergence.culprits),
        }
