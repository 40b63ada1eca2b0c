"""H108 split-mismatch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.splits import SplitMismatch
from whystuck.diagnose.algorithms.stacks.frames import (
    describe_place,
    make_places,
    select_user_frames,
)
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks

_MAX_PAIRS = 16


class SplitMismatchRule(Rule):
    """A rank sends another one more or less in all_to_all than that one expects.

    ## What it means

    What rank i gives to rank j must be what j gets from i. Where they differ, gloo aborts a rank,
    which need not be one of the two; NCCL hangs or mixes up data.

    ## How it is found

    The op logs hold the splits of all_to_all_single and the shapes of all_to_all on each rank; they
    are compared for each pair, in ops that did not come to an end. The rank that is in all pairs
    which do not fit is named, or the one whose call had other splits each time before; else both
    ranks of the pair. `details.pair` are sender and receiver, `details.sent` and
    `details.expected` the elements, `details.pairs` all of these for each pair.

    A log tells it, too: torch raises an exception in a rank whose splits do not add up to the first
    dimension of its tensor. That rank is named, unless all ranks raise it.

    Ranks that print both lists of splits before they wait in the call are compared in the same way.
    The rank is named that is in all pairs, whose lists differ where all others have the same, or
    that had others each time before; else nobody is.

    Where only `torchfrtrace` tells that the elements do not add up, nobody is named.

    ## False alarms

    None are known. Without op logs or prints nothing can be told: flight recorders keep no splits.

    ## What to do

    Exchange the sizes first, with an all_to_all_single of the counts, and use what came for the
    output splits.
    """

    code = codes.SPLIT_MISMATCH
    name = "split-mismatch"
    shows_ops = True
    compares_ops = True
    needs = ("ops", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        "exchange the counts with `all_to_all_single` first, and make the output splits of them",
        "check that both ranks count in the same unit: rows of the first dimension, not elements",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the finding when splits of the last ops do not fit, or torchfrtrace says so."""
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
        found = scene.divergences.split_mismatch
        if found is None:
            return
        ops = scene.evidence.ops
        sender, receiver, sent, expected = found.pairs[0]
        label = ops.teams[found.team].name
        named = name_ranks(found.culprits)
        which = (
            f"the splits of {named} are wrong: {found.reason}"
            if found.reason
            else "which of the two is wrong cannot be told"
        )
        more = f" (and {len(found.pairs) - 1} more pairs)" if len(found.pairs) > 1 else ""
        where = [
            place
            for rank in found.culprits
            for place in make_places(rank, self._site(scene, found, rank), policy.places_per_rank)
        ]
        yield self.make_finding(
            f"rank {sender} sends {sent} elements to rank {receiver} in {found.op} "
            f"{found.place} of group {label}, which expects {expected}{more}; {which}",
            Confidence.CERTAIN,
            Blame(
                ranks=found.culprits,
                groups=[label],
                victims=sorted(set(ops.teams[found.team].members)),
                where=where,
            ),
            because=[
                self._cite(scene, found, sender, f"gives {sent} elements to rank {receiver}"),
                self._cite(scene, found, receiver, f"expects {expected} from rank {sender}"),
            ],
            details={
                "pair": [sender, receiver],
                "sent": sent,
                "expected": expected,
                "group": label,
                "sequence": found.place,
                "op": found.op,
                "pairs": [list(pair) for pair in found.pairs[:_MAX_PAIRS]],
            },
        )

    def _site(self, scene: Scene, found: SplitMismatch, rank: int) -> tuple[Frame, ...]:
        ops = scene.evidence.ops
        return select_user_frames(ops.sites[int(ops.site[found.rows[rank]])].frames)

    def _cite(self, scene: Scene, found: SplitMismatch, rank: int, what: str) -> Citation:
        ops = scene.evidence.ops
        row = found.rows[rank]
        site = self._site(scene, found, rank)
        place = f" in {describe_place(site[0])}" if site else ""
        artifact = ops.logs[int(ops.log[row])].artifact
        return Citation(f"rank {rank} {what}{place}", artifact, int(ops.number[row]))
