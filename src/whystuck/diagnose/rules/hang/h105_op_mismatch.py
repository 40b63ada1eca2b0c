"""H105 op-mismatch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.alignment import Clash
from whystuck.diagnose.algorithms.ops.divergence import Divergence
from whystuck.diagnose.algorithms.ops.divergence_kinds import DivergenceKind
from whystuck.diagnose.context.ras_facts import cite_ras, find_odd_calls
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.diagnose.rule_kinds import DivergenceRule, name_ops, name_place
from whystuck.evidence.finding import Confidence, Finding
from whystuck.evidence.ranks import name_ranks


class OpMismatch(DivergenceRule):
    """Members of a group made different ops at the same place.

    ## What it means

    One rank called, say, broadcast where the others called all_reduce. The ops can never
    match. Nor can broadcasts, reduces, gathers or scatters with different roots
    (`details.roots`), which op logs tell.

    ## How it is found

    Ops of a group are laid side by side by sequence number. From the first clash (other op,
    other size, or a member that never comes) the call sites are followed back to the first
    one that differs. The ops differ there, and the two calls are alternatives to each other:
    two branches of one `if`, or one line. Without frames, two ops of one number count as
    alternatives when what follows them runs in step.

    Groups that ranks began to make are compared by their numbers, as the probes keep them: one that
    has other members on few ranks is made in another order there. Of two halves, nobody is named.

    Where no op was recorded, stacks alone show ranks that wait in calls which do not meet. Few
    beside most of three ranks or more are named, as `possible`; two sides that are even name
    nobody. Where nothing tells of which group the calls are, the one rank is named that gathers
    Python objects while three or more wait in another call.

    With `TORCH_DISTRIBUTED_DEBUG=DETAIL` torch compares the calls itself; what it prints in the
    log is told the same way. So is what `torchfrtrace` and HCCL (EI0005) say. The former compares
    each rank with the first one, and where it names most of them, the others are named here.

    Where no op was recorded, an answer of NCCL RAS tells, as `possible`: a few members of a
    communicator issued more collectives of one kind and fewer of another than most. Who is only
    late has issued no more of any.

    Where several threads of a rank have ops of the group on hosts that are not over
    (`details.threads`), their order is chance on each rank: it is `possible`, and no rank is named.

    ## False alarms

    When an extra call hangs at once, it can look the same; H102 is reported when the source
    shows that the call is additional.

    ## What to do

    Choose the op by a condition that all ranks share.
    """

    code = codes.OP_MISMATCH
    name = "op-mismatch"
    way = DivergenceKind.OP
    needs = (*DivergenceRule.needs, "ras")
    remedies: ClassVar[tuple[str, ...]] = (
        "choose the op by a condition that is the same on all ranks of the group",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what ops, logs and stacks tell; else what NCCL counted."""
        found = list(super().check(scene, policy))
        yield from found
        is_open = not (found or scene.ops.recorded_ranks or scene.exits.is_crash)
        odd = find_odd_calls(scene.evidence, scene.ranks.all) if is_open else None
        if odd is not None:
            yield self.make_finding(
                f"{odd.who} {odd.text}, when NCCL RAS was asked: the calls are not the same",
                Confidence.POSSIBLE,
                Blame(ranks=odd.ranks, victims=odd.others),
                because=cite_ras(scene.evidence, len(scene.ranks.all)),
            )

    def describe(self, scene: Scene, divergence: Divergence) -> str:
        """Write the summary."""
        who = name_ranks(divergence.culprits)
        label = divergence.alignment.group.label
        if roots := _read_roots(divergence):
            return _describe_roots(scene, divergence, roots)
        if divergence.is_tied:
            what = name_ops(scene, divergence, divergence.culprits)
            return f"{who} disagree about op {divergence.seq} of group {label}: {what}"
        return (
            f"{who} called {name_ops(scene, divergence, divergence.culprits)} "
            f"in {name_place(scene, divergence, divergence.culprits)} where the others called "
            f"{name_ops(scene, divergence, divergence.others)} "
            f"(op {divergence.seq} of group {label})"
        )

    def detail(self, scene: Scene, divergence: Divergence) -> dict[str, Any]:
        """Return the fixed keys of this code."""
        roots = _read_roots(divergence)
        told = {"roots": {str(rank): root for rank, root in roots.items()}} if roots else {}
        return super().detail(scene, divergence) | told


def _read_roots(divergence: Divergence) -> dict[int, int]:
    """Return the root that each rank gave, where they are what does not match."""
    if divergence.clash != Clash.ROOT or not divergence.by_form:
        return {}
    alignment = divergence.alignment
    return {rank: alignment.form_of(row).root for rank, row in sorted(divergence.rows.items())}


def _describe_roots(scene: Scene, divergence: Divergence, roots: Mapping[int, int]) -> str:
    def tell(ranks: Sequence[int]) -> str:
        return " or ".join(str(root) for root in sorted({roots[r] for r in ranks if r in roots}))

    op = name_ops(scene, divergence, divergence.culprits)
    return (
        f"{name_ranks(divergence.culprits)} called {op} "
        f"in {name_place(scene, divergence, divergence.culprits)} with root "
        f"{tell(divergence.culprits)}, where the others have root {tell(divergence.others)} "
        f"(op {divergence.seq} of group {divergence.alignment.group.label})"
    )
