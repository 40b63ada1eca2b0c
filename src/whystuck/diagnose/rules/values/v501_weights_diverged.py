"""V501 weights-diverged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.values.replicas_apart import AFTER, GRADS, Apart, find_apart
from whystuck.diagnose.algorithms.values.results_apart import ResultApart, find_result_apart
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.ops.inspection import OpResult
from whystuck.evidence.ranks import name_ranks

_TEST = (
    "test the devices, links and memory of the ranks and nodes named; when the same rank is named "
    "again with another version of the backend, it is the hardware"
)


class WeightsDiverged(Rule):
    """Copies of a parameter, or results of an op, that must be equal on some ranks differ.

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

    Sums that a job prints itself (`step 4000 param checksum rank 3: 19be0d77`) are compared too:
    few ranks of three or more that differ from all others at one step are named. So are those of
    a table of values (`grad_norm across the workers:`), and of one with a column or a row for each
    rank: sums and hashes over parameters, as the names of columns or the lines above it say. Sums
    that differ by no more than the order of what is added are equal. An exception that says that
    gradients or parameters differ between ranks is told here, too: whoever raised it has found the
    difference, and is not named for that. Sums over a tensor (`[0] step 50 sum(lora_A)= 1.2391`)
    that differ on all ranks, and change by the same amount on all of them, tell that ranks began
    with other values: then nobody is named.

    Only copies are compared: the same name, the same shape, and equal values at the first look and
    at the first one at which the tensor had changed. Shards of a tensor and stages of a pipeline
    are no copies. `--inspect weights:grads` looks at the gradients too, before each step: when they
    differ first, the reduction or what came after it is at fault, not the parameter.

    `--inspect results` (and `stats`) makes a checksum of what each rank got from `all_reduce`,
    `broadcast` and `all_gather`, in all their forms: all members of the group have the same. A rank
    whose result differs from that of the majority is likely; with two members neither is more
    likely. When results differ before parameters do, they come first: the backend, the network or a
    device damaged what it moved. `details["when"]` is `result` then, with `op`, `group` and `seq`.
    Results that are not finite are left to V502.

    ## False alarms

    Methods that let ranks drift apart on purpose after they were equal for some steps, such as
    local SGD after a warm-up. Devices of different kinds may round differently. A backend that adds
    up in another order on each rank gives other results on each from the first op on; only when
    most ranks agree, or agreed before, is that a finding.

    ## What to do

    Look at what the rank does at that step that others do not. When it is the hardware, the same
    rank or node is named again after a restart from a checkpoint.
    """

    code = codes.WEIGHTS_DIVERGED
    name = "weights-diverged"
    needs = ("inspections", "logs")
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
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
        inspections = scene.evidence.inspections
        apart = find_apart(one for inspection in inspections for one in inspection.checksums)
        teams = scene.evidence.ops.teams
        result = find_result_apart(
            inspections, ((team.name, frozenset(team.members)) for team in teams)
        )
        if result is not None and (apart is None or _comes_first(result, apart)):
            yield self._make_result(result)
        elif apart is not None:
            yield self._make_weights(apart)

    def _make_result(self, apart: ResultApart) -> Finding:
        first, culprits = apart.first, apart.odd or tuple(apart.rows)
        finding = self.make_finding(
            _describe_result(apart),
            Confidence.LIKELY if apart.odd and apart.has_agreed else Confidence.POSSIBLE,
            Blame(ranks=culprits, groups=[first.group], victims=sorted(set(apart.rows))),
            because=[_cite_result(row) for _, row in sorted(apart.rows.items())[:8]],
            details={
                "when": "result",
                "op": first.name,
                "group": first.group,
                "seq": first.seq,
                "step": first.step,
                "shape": list(first.shape),
                "dtype": first.dtype,
                "replicas": sorted(apart.rows),
            },
        )
        return replace(finding, remedies=[self.remedies[0], _TEST])

    def _make_weights(self, apart: Apart) -> Finding:
        culprits = apart.odd or apart.replicas
        others = set(apart.replicas) - set(culprits)
        return self.make_finding(
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


def _comes_first(result: ResultApart, apart: Apart) -> bool:
    """Return whether results differ before the parameters, or in the step that made them differ."""
    step = result.first.step
    return step < apart.step if apart.when == AFTER else step <= apart.step


def _describe_result(apart: ResultApart) -> str:
    first = apart.first
    op = f"{first.name} #{first.seq} of group {first.group} after {first.step} optimizer steps"
    if not apart.odd:
        return f"{name_ranks(apart.rows)} got different results from {op}"
    others = name_ranks(set(apart.rows) - set(apart.odd))
    return f"{name_ranks(apart.odd)} got another result from {op} than {others}"


def _cite_result(row: OpResult) -> Citation:
    text = f"rank {row.rank}: checksum {row.checksum:016x} of {row.name} #{row.seq}"
    return Citation(text, row.artifact, row.row)


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
