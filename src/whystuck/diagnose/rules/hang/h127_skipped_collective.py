"""H127 skipped-collective."""

from __future__ import annotations

from typing import Any, ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.divergence import Divergence
from whystuck.diagnose.algorithms.ops.divergence_kinds import DivergenceKind
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.rule_kinds import DivergenceRule, name_ops, name_place
from whystuck.evidence.ops.collectives import Frame
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

    With several groups, or where hosts run ahead of their devices, ranks wait far from what went
    wrong. The calls of a rank, those of all its groups in their order, are compared with its own
    earlier steps: the call that always came, and that the other members made, is the one left
    out. It is `likely` only, when the calls that follow are too few to tell it from one that
    comes later, in another order. Before there are steps to compare with, the calls of ranks that
    run one program are laid side by side.

    A rank that is first at a call to which all ranks come is ahead: it left out what the others
    wait in, such as a backward pass that failed, or that another accumulation of gradients put
    off. Of two sides of one size, either may be wrong: both are named, as `possible`.

    Where no op was recorded, stacks alone can tell, as `possible`: most ranks wait in a call that
    an early return leads past, and few are in another one; or a rank waits in a group of few, and
    another member of that group went past the call.

    A call that sets up a group, such as `new_group`, is in no record of ops. Where stacks show
    ranks in it, and all others wait in ops for them, those did not make it whose probe counts fewer
    such calls: `likely` where they are few. Without counts, a rank is named where it is alone.
    Where all ranks are in such calls, or the probes tell which groups they began to make, those are
    compared by their numbers: a rank that made as one group what the others made as the next left
    one out; where nothing tells that, it is H105, and one too many is H102.

    Where logs alone are there: one rank printed again and again that it caught an exception and
    goes on, the others waited until their time limit, and it did not. Or the rank that others miss
    printed, as they did not, that it leaves out a batch or has nothing to reduce, and no step
    since. Or the calls of all ranks are printed side by side, as `torchfrtrace -j` does it, or as a
    table with a row for each: they are compared as those of dumps are. Or the tracebacks of all
    ranks and source beside them show that a condition which asks for no rank leads past the call of
    most. Or pasted stacks and source show the same: all ranks but few wait in one call, and the few
    are behind it. That is `possible` where they compute, as they may be late in the step before,
    and `likely` where they wait for what is queued on their devices. Or the ranks that a tool or
    watchdogs name as missing print themselves that they leave something out, as they have no data
    for it, and no other rank does. Or somebody prints how many calls of an op each rank made
    (`rank0 412 rank1 411`): few ranks have fewer than all others, and wait in another call by their
    stacks or watchdogs. Where they wait in none, they did not come to the last one (H101); who has
    more than all others is H102.

    Or ranks come to one number with different calls, and source that is shown beside leaves the
    call of most ranks out on a condition (`if not batch: continue` above `dist.all_reduce`): of
    calls of one kind, one of a few elements. Or the rank itself says that it jumps over its step,
    as it has no data for it, and all others reduce a few numbers.

    ## False alarms

    Call sites that differ and meet again are legal and accuse nobody.

    ## What to do

    Do not return or continue before a collective on a condition that only some ranks meet;
    contribute an empty or zero value. Let all ranks accumulate the same number of batches, and
    do not catch an error around a backward pass without leaving that pass out on all ranks.
    """

    code = codes.SKIPPED_COLLECTIVE
    name = "skipped-collective"
    way = DivergenceKind.SKIPPED
    remedies: ClassVar[tuple[str, ...]] = (
        "let every rank make the call: contribute zeros or an empty value where it has nothing",
        "or let all ranks decide together, with an all_reduce of the condition, to leave it out",
        (
            "where it is a backward pass: accumulate the same number of batches on all ranks, and "
            "let no `except` go on without it"
        ),
    )

    def describe(self, scene: Scene, divergence: Divergence) -> str:
        """Write the summary."""
        who = name_ranks(divergence.culprits)
        skipped = name_ops(scene, divergence, divergence.others)
        place = name_place(scene, divergence, divergence.others)
        now = name_ops(scene, divergence, divergence.culprits)
        if divergence.is_ahead:
            where = name_place(scene, divergence, divergence.culprits)
            verb = "is" if len(divergence.culprits) == 1 else "are"
            return (
                f"{who} {verb} ahead at the {now} in {where}, which all ranks come to, without "
                f"the {skipped} in {place} that the others wait in"
            )
        return (
            f"{who} skipped the {skipped} in {place} and went on to {now}; "
            f"the others wait in the {skipped}"
        )

    def find_place(self, scene: Scene, divergence: Divergence) -> dict[int, tuple[Frame, ...]]:
        """Return the call site that each culprit skipped, as its peers made it."""
        peer = next((rank for rank in divergence.others if rank in divergence.rows), None)
        if peer is None:
            return super().find_place(scene, divergence)
        return dict.fromkeys(divergence.culprits, scene.ops.get_site(divergence.rows[peer]))

    def detail(self, scene: Scene, divergence: Divergence) -> dict[str, Any]:
        """Return the fixed keys of this code."""
        return super().detail(scene, divergence) | {
            "skipped": name_place(scene, divergence, divergence.others),
            "went_on_to": name_place(scene, divergence, divergence.culprits),
        }
