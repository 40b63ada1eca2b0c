"""H106 shape-mismatch."""

from __future__ import annotations

from typing import Any, ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.divergence import Divergence
from whystuck.diagnose.algorithms.ops.divergence_kinds import DivergenceKind
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.rule_kinds import DivergenceRule, name_ops, name_place
from whystuck.evidence.ranks import name_ranks


class ShapeMismatch(DivergenceRule):
    """Members of a group gave tensors of different size to the same op.

    ## What it means

    An op like all_reduce needs the same number of elements on all ranks. gloo aborts one
    rank, which need not be the guilty one; other backends hang or mix up data.

    ## How it is found

    At one place of the same op, the recorded sizes differ; the minority is named. History
    breaks a tie: sizes that this call had before are the normal ones.

    Where gloo only says that it received another number of bytes than it expected, and no record
    tells whose call differs, that is a possible cause without a rank. So it is where NCCL says
    `collective mismatch error` or `message truncated`. HCCL compares the arguments themselves
    (EI0005), and accelerate the shapes of all processes: it is `likely` then, without a rank.
    Where ranks print shapes, and their last ones are as large as both numbers of bytes, or have
    pieces of both sizes when each rank has one or two of them, the few whose shape is another one
    are named.

    With `TORCH_DISTRIBUTED_DEBUG=DETAIL` torch compares the calls itself; what it prints in the
    log is told the same way, as is what `torchfrtrace` says; where
    the sizes of all ranks stand beside that, they tell who differs from most.

    ## False alarms

    Ops that allow different sizes (gather, scatter, all_to_all) are not compared.

    ## What to do

    Pad the tensors to one size, or share the sizes first.
    """

    code = codes.SHAPE_MISMATCH
    name = "shape-mismatch"
    way = DivergenceKind.SHAPE
    remedies: ClassVar[tuple[str, ...]] = (
        "pad to one size, or gather the sizes first and use an op that allows different ones",
        "with uneven last batches use `drop_last=True` or `DistributedSampler`",
    )

    def describe(self, scene: Scene, divergence: Divergence) -> str:
        """Write the summary."""
        who = name_ranks(divergence.culprits)
        shapes = self._read_shapes(divergence)
        mine = " or ".join(sorted({str(shapes[str(rank)]) for rank in divergence.culprits}))
        theirs = " or ".join(sorted({str(shapes[str(rank)]) for rank in divergence.others}))
        op = name_ops(scene, divergence, divergence.culprits)
        place = name_place(scene, divergence, divergence.culprits)
        against = f"; the others gave {theirs}" if theirs else ""
        return f"{who} gave a tensor of shape {mine} to {op} in {place}{against}"

    def detail(self, scene: Scene, divergence: Divergence) -> dict[str, Any]:
        """Return the fixed keys of this code."""
        return super().detail(scene, divergence) | {"shapes": self._read_shapes(divergence)}

    def _read_shapes(self, divergence: Divergence) -> dict[str, list[Any]]:
        alignment = divergence.alignment
        return {
            str(rank): _shorten(alignment.form_of(row).input_sizes)
            for rank, row in divergence.rows.items()
        }


def _shorten(sizes: tuple[tuple[int, ...], ...]) -> list[Any]:
    """Write one shape as a list, several as a list of lists."""
    shapes = [list(size) for size in sizes]
    return shapes[0] if len(shapes) == 1 else shapes
