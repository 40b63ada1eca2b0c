"""H102 extra-collective."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.alignment import ABSENT
from whystuck.diagnose.algorithms.ops.divergence import Divergence
from whystuck.diagnose.algorithms.ops.divergence_kinds import DivergenceKind
from whystuck.diagnose.algorithms.source.reach import skip_wrappers
from whystuck.diagnose.algorithms.stacks.frames import describe_place
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.rule_kinds import NO_FRAMES, DivergenceRule, name_ops
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks


class ExtraCollective(DivergenceRule):
    """A rank made a collective that the other members of the group did not make.

    ## What it means

    From the extra call on, this rank is one op ahead: its op number n meets op number n of
    the others, which is another call.

    ## How it is found

    Ops of a group are laid side by side by sequence number. From the first clash (other op,
    other size, or a member that never comes) the call sites are followed back to the first
    one that differs. The rank has a call there that the others never made, and what follows
    matches theirs, shifted by one. With the source at hand, a call below an `if` that asks for
    the rank, which no other rank has made, is named for sure.

    With several groups, or where hosts run ahead of their devices, ranks wait far from what went
    wrong. The calls of a rank, those of all its groups in their order, are compared with its own
    earlier steps: a call that never came there before, and that the other members did not make,
    is the extra one. Before there are steps to compare with, the calls of ranks that run one
    program are laid side by side.

    A call to which all ranks come by the source, or that the others made before, is no extra one:
    the rank that makes it first is ahead, which is H127 or H103. What all come to is below no
    condition, or one on counts of steps and settings.

    Where no op was recorded, stacks alone can tell: all ranks wait and none runs, one or few are
    in another call than most, and the source lets only them make a collective, by a condition on
    the rank. Without such a condition it is only `possible`: of a barrier, or a call for the state
    of a sharded model, beside ops of a step.

    The source may be what somebody shows beside pasted stacks: what `sed -n 36,46p ckpt.py`, `nl`
    or `grep -n` print, or a listing below the name of a file. There, a rank that alone waits in a
    collective, at a line to which such a condition lets no other come, is `possible` whatever the
    others do.

    Beside time limits of all other ranks, the stack of the first rank is enough where it is in a
    collective inside of a function that is named after it, such as `log_if_main`.

    Where other ranks make that very call, too, but from elsewhere, and its function makes it
    without a condition, as wrappers do, the line is that of the caller. This takes the source of
    the wrapper.

    Where `torchfrtrace` or Horovod tells that most members of a group are missing, whoever came is
    `possible`: `details.joined` and `details.missing`.

    Where watchdogs or `torchfrtrace` show rank 0 alone in a barrier (which NCCL makes of an
    all_reduce of one element), and all others in a call with data, the barrier is the extra call.
    Of another rank, it may be what comes behind the call that it left out: H105 or H106.

    ## False alarms

    Call sites that differ and meet again are legal and accuse nobody.

    ## What to do

    Move the collective out of the branch that only some ranks enter, or let all ranks enter
    it.
    """

    code = codes.EXTRA_COLLECTIVE
    name = "extra-collective"
    way = DivergenceKind.EXTRA
    remedies: ClassVar[tuple[str, ...]] = (
        "call the collective on all ranks of the group: move it out of the `if rank == ...` branch",
        "or use a group that holds only the ranks that call it",
    )

    def find_place(self, scene: Scene, divergence: Divergence) -> dict[int, tuple[Frame, ...]]:
        """Return the call of each culprit from the frame on that may be wrong."""
        alignment = divergence.alignment
        columns = np.isin(alignment.ranks, divergence.others)
        rows = np.unique(alignment.rows[:, columns])
        rows = rows[rows != ABSENT]
        _, first = np.unique(alignment.table.site[rows], return_index=True)
        others = [scene.ops.get_site(row) for row in rows[first].tolist()]
        places = super().find_place(scene, divergence)
        sources = scene.evidence.sources
        return {rank: skip_wrappers(site, others, sources) for rank, site in places.items()}

    def describe(self, scene: Scene, divergence: Divergence) -> str:
        """Write the summary."""
        who = name_ranks(divergence.culprits)
        what = name_ops(scene, divergence, divergence.culprits)
        sites = [site for site in self.find_place(scene, divergence).values() if site]
        place = describe_place(sites[0][0]) if sites else NO_FRAMES
        label = divergence.alignment.group.label
        return (
            f"{who} made an extra {what} in {place}; every later op of group {label} is off by one"
        )
