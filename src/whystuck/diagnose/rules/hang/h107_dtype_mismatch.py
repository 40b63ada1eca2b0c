"""H107 dtype-mismatch."""

from __future__ import annotations

from typing import Any, ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.divergence import Divergence
from whystuck.diagnose.algorithms.ops.divergence_kinds import DivergenceKind
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.rule_kinds import DivergenceRule, name_ops, name_place
from whystuck.evidence.ranks import name_ranks


class DtypeMismatch(DivergenceRule):
    """Members of a group gave tensors of different types to the same op.

    ## What it means

    An op needs the same element type on all ranks. gloo aborts one rank, which need not be
    the guilty one; other backends hang or mix up data.

    ## How it is found

    At one place of the same op, the recorded types differ while the sizes agree; the minority
    is named. History breaks a tie.

    With `TORCH_DISTRIBUTED_DEBUG=DETAIL` torch compares the calls itself; what it prints in the
    log is told the same way.

    Where a transport met twice the bytes that it expected, or half of them, source that is shown
    (`torch.int64 if rank == 1 else torch.int32`) or types that ranks print tell who it is.

    ## False alarms

    None are known.

    ## What to do

    Convert to one type before the call.
    """

    code = codes.DTYPE_MISMATCH
    name = "dtype-mismatch"
    way = DivergenceKind.DTYPE
    remedies: ClassVar[tuple[str, ...]] = (
        (
            "convert the tensor to one type on all ranks before the call; check `autocast` and "
            "`torch.set_default_dtype`"
        ),
    )

    def describe(self, scene: Scene, divergence: Divergence) -> str:
        """Write the summary."""
        who = name_ranks(divergence.culprits)
        dtypes = self._read_dtypes(divergence)
        mine = " or ".join(sorted({str(dtypes[str(rank)]) for rank in divergence.culprits}))
        theirs = " or ".join(sorted({str(dtypes[str(rank)]) for rank in divergence.others}))
        op = name_ops(scene, divergence, divergence.culprits)
        place = name_place(scene, divergence, divergence.culprits)
        against = f"; the others gave {theirs}" if theirs else ""
        return f"{who} gave a tensor of type {mine} to {op} in {place}{against}"

    def detail(self, scene: Scene, divergence: Divergence) -> dict[str, Any]:
        """Return the fixed keys of this code."""
        return super().detail(scene, divergence) | {"dtypes": self._read_dtypes(divergence)}

    def _read_dtypes(self, divergence: Divergence) -> dict[str, str]:
        alignment = divergence.alignment
        return {
            str(rank): ", ".join(alignment.form_of(row).input_dtypes)
            for rank, row in divergence.rows.items()
        }
