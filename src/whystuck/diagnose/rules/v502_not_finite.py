"""V502 not-finite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose.algorithms.spread import Origin, find_origin, is_ordered
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.diagnose.scene import Scene
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.inspection import NotFinite
from whystuck.evidence.ranks import name_ranks


class NotFiniteRule(Rule):
    """NaN or Inf went into a collective.

    ## What it means

    A reduction spreads one NaN to all ranks, and the next step to all parameters. Afterwards
    every rank looks the same; only the rank whose input was not finite first has the cause: its
    batch, its data, its part of the model, or its device.

    ## How it is found

    `--inspect finite` (or `stats`) counts NaN and Inf in what each rank gives to each op, before
    the op runs. The first op, by steps and by its number in its group, into which a rank gave some
    is named, with the rank. Ranks that had received some before are not. When all ranks give some
    to the same first op, no rank is blamed: a loss or learning rate is too large for all of them.

    Ops that belong to a step which a gradient scaler (`torch.amp.GradScaler`) skips are left out:
    that gradients overflow is how it finds its scale.

    ## False alarms

    Programs that use Inf as a value, as in a maximum that begins with `-inf`: Inf without NaN is
    `possible` only. Where only some ops are looked at (`rate`, `ops`, `min`, `max`), the first one
    seen may not be the first one.

    ## What to do

    Look at the batch of that rank at that step. `torch.autograd.set_detect_anomaly(True)` names
    the line when the step is run again; `--inspect call:...:action=break` stops there.
    """

    code = "V502"
    name = "not-finite"
    needs = ("inspections",)
    remedies: ClassVar[tuple[str, ...]] = (
        (
            "look at the batch and the loss of that rank at that step; run the step again under "
            "`torch.autograd.set_detect_anomaly(True)` to get the line"
        ),
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield where it began."""
        del policy
        origin = find_origin(scene.evidence.inspections)
        if origin is None:
            return
        first = min(origin.first, key=lambda one: one.rank)
        ranks = [] if origin.is_everywhere else sorted(one.rank for one in origin.first)
        others = sorted(origin.inspected - set(ranks))
        yield self.make_finding(
            _describe(origin, first),
            _judge(origin),
            Blame(ranks=ranks, groups=[first.group], victims=others),
            because=[_cite(one) for one in sorted(origin.first, key=lambda one: one.rank)[:8]],
            details={
                "op": first.name,
                "group": first.group,
                "seq": first.seq,
                "step": first.step,
                "tensor": first.place,
                "shape": list(first.shape),
                "dtype": first.dtype,
                "nan": first.nan,
                "inf": first.inf,
            },
        )


def _judge(origin: Origin) -> Confidence:
    has_nan = any(one.nan for one in origin.first)
    return Confidence.LIKELY if has_nan and is_ordered(origin.first) else Confidence.POSSIBLE


def _name_values(first: NotFinite) -> str:
    found = [f"{count} {name}" for count, name in ((first.nan, "NaN"), (first.inf, "Inf")) if count]
    return " and ".join(found)


def _describe(origin: Origin, first: NotFinite) -> str:
    op = f"{first.name} #{first.seq} of group {first.group}"
    at = f"after {first.step} optimizer steps"
    if origin.is_everywhere:
        return f"all ranks gave values that are not finite to {op} {at}: no rank had them first"
    if len(origin.first) == 1:
        return f"rank {first.rank} gave {_name_values(first)} to {op} {at}; its peers did not"
    who = name_ranks(sorted(one.rank for one in origin.first))
    return f"{who} gave values that are not finite to ops, first {op} {at}"


def _cite(one: NotFinite) -> Citation:
    shape = "x".join(map(str, one.shape)) or "scalar"
    text = (
        f"rank {one.rank}: {_name_values(one)} in input {one.place} ({one.dtype} {shape}) of "
        f"{one.name} #{one.seq} of group {one.group}"
    )
    return Citation(text, one.artifact, one.row)
