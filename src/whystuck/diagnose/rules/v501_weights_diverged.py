"""V501 weights-diverged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose.algorithms.replicas_apart import AFTER, GRADS, Apart, find_apart
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.diagnose.scene import Scene
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.ranks import name_ranks


class WeightsDiverged(Rule):
    """Copies of a parameter that must be equal on some ranks differ.

    ## What it means

    Data-parallel ranks begin with the same parameters, get the same gradients and make the same
    step: their parameters are equal, bit for bit. Once they are not, every rank trains a model of
    its own, and the loss often does not tell. Memory or a device that flips bits does this, and so
    do parameters that one rank alone loads, clips or freezes, gradients that are not reduced, and
    ranks that do not start from the same values.

    ## How it is found

    `--inspect weights` makes a checksum of every parameter on every rank, after optimizer steps
    and before the next ones. The first tensor, in the order of the optimizer, and the first step
    are named at which ranks differ that were equal before. A rank whose parameter changed between
    two steps, while its copies stayed as they were, is certain; one that differs from the majority
    after a step is likely. Of two ranks, neither is more likely than the other.

    Only copies are compared: the same name, the same shape, and equal values at the first look and
    at the first one at which the tensor had changed. Shards of a tensor and stages of a pipeline
    are no copies. `--inspect weights:grads` looks at the gradients too, before each step: when they
    differ first, the reduction or what came after it is at fault, not the parameter.

    ## False alarms

    Methods that let ranks drift apart on purpose after they were equal for some steps, such as
    local SGD after a warm-up. Devices of different kinds may round differently.

    ## What to do

    Look at what the rank does at that step that others do not. When it is the hardware, the same
    rank or node is named again after a restart from a checkpoint.
    """

    code = "V501"
    name = "weights-diverged"
    needs = ("inspections",)
    remedies: ClassVar[tuple[str, ...]] = (
        "go back to a checkpoint from before that step: those after it hold several models",
        (
            "look for code that only this rank runs near that step (loading, clipping, freezing); "
            "when there is none, test the memory of its node and device"
        ),
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the first difference."""
        del policy
        apart = find_apart(
            one for inspection in scene.evidence.inspections for one in inspection.checksums
        )
        if apart is None:
            return
        culprits = apart.odd or apart.replicas
        others = set(apart.replicas) - set(culprits)
        yield self.make_finding(
            _describe(apart),
            _judge(apart),
            Blame(ranks=culprits, victims=sorted(others)),
            because=_cite(apart),
            details={
                "tensor": apart.name,
                "shape": list(apart.tensors.shapes[apart.place]),
                "dtype": apart.tensors.dtypes[apart.place],
                "tensors": apart.count,
                "step": apart.step,
                "when": apart.when,
                "equal_after_step": apart.equal_step,
                "replicas": list(apart.replicas),
            },
        )


def _judge(apart: Apart) -> Confidence:
    if apart.is_own_change:
        return Confidence.CERTAIN
    return Confidence.LIKELY if apart.odd else Confidence.POSSIBLE


def _describe(apart: Apart) -> str:
    what = "the gradient of " if apart.when == GRADS else ""
    more = f" and {apart.count - 1} more tensors" if apart.count > 1 else ""
    tensor = f"{what}`{apart.name}`{more}"
    if apart.is_own_change:
        where = f"between step {apart.step} and the next one"
        rest = set(apart.replicas) - set(apart.odd)
        kept = f", while {name_ranks(rest)} did not" if rest else ""
        return f"{name_ranks(apart.odd)} changed {tensor} {where}{kept}"
    where = f"after step {apart.step}" if apart.when == AFTER else f"before step {apart.step + 1}"
    if apart.odd:
        verb = "has other values" if len(apart.odd) == 1 else "have other values"
        return f"{name_ranks(apart.odd)} {verb} of {tensor} than the other copies {where}"
    return f"{name_ranks(apart.replicas)} have different values of {tensor} {where}"


def _cite(apart: Apart) -> list[Citation]:
    cited = []
    for rank in apart.replicas[:8]:
        row = apart.rows.get(rank)
        if row is not None:
            text = f"rank {rank}: checksum {int(row.sums[apart.place]):016x} of `{apart.name}`"
            cited.append(Citation(text, row.artifact, row.row))
    return cited
