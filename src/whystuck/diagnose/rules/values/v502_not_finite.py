"""V502 not-finite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.values.spread import Origin, find_members, find_origin, is_ordered
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.ops.inspection import NotFinite
from whystuck.evidence.ranks import name_ranks

_LOOK = (
    "look at the batch and the loss of that rank at that step; run the step again under "
    "`torch.autograd.set_detect_anomaly(True)` to get the line"
)
_REDUCE = (
    "when an op made them of finite values: reduce in float32 or bfloat16, or divide before the sum"
)


class NotFiniteRule(Rule):
    """NaN or Inf went into a collective, or came out of one.

    ## What it means

    A reduction spreads one NaN to all ranks, and the next step to all parameters. Afterwards
    every rank looks the same; only the rank whose input was not finite first has the cause: its
    batch, its data, its part of the model, or its device.

    ## How it is found

    `--inspect finite` (or `stats`) counts NaN and Inf in what each rank gives to each op, before
    the op runs. The first op, by steps and by its number in its group, into which a rank gave some
    is named, with the rank. Ranks that had received some before are not. When all ranks give some
    to their first op, no rank is blamed: a loss or learning rate is too large for all of them.

    A pipeline passes values on by sends. Each send is numbered among those to its receiver, and
    each rank counts what it had asked for before an op: a rank whose peer had sent it NaN or Inf
    before is not named.

    An op can make them of finite values, too: a sum that is too large for float16, or a device or
    link that damages what it moves. Then the op is named of which no rank gave any, but that gave
    some; where all ranks got them, no rank is blamed.

    Ops that belong to a step which a gradient scaler (`torch.amp.GradScaler`) or a check of the job
    skips on all ranks are left out: that gradients overflow is how a scale is found. Too many of
    these are V503.

    Of logs alone, it is a loss or a norm that is printed as NaN or Inf and is no number in any
    later line. A rank is named where it alone prints so, and others print finite ones, or where a
    hook on its layers or a loss before the reduction tells so a step before those of others; many
    jobs print the loss of all by one rank. What a rank stopped for explains that others wait for
    it.

    ## False alarms

    Programs that use Inf as a value, as in a maximum that begins with `-inf`: Inf without NaN is
    `possible` only. Where only some ops are looked at (`rate`, `ops`, `min`, `max`), the first one
    seen may not be the first one. The same holds for what an op seems to have made.

    ## What to do

    Look at the batch of that rank at that step. `torch.autograd.set_detect_anomaly(True)` names
    the line when the step is run again; `--inspect call:...:action=break` stops there.
    """

    code = codes.NOT_FINITE
    name = "not-finite"
    needs = ("inspections", "logs")
    remedies: ClassVar[tuple[str, ...]] = (_LOOK, _REDUCE)

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield where it began."""
        del policy
        origin = find_origin(scene.evidence.inspections, find_members(scene.evidence))
        if origin is None:
            yield from (tell_case(self, case) for case in scene.story.of(self.code))
            return
        first = min(origin.first, key=lambda one: one.rank)
        ranks = sorted(one.rank for one in origin.first)
        culprits = [] if origin.is_everywhere else ranks
        finding = self.make_finding(
            _describe_made(origin, first) if origin.is_made_by_op else _describe(origin, first),
            _judge_made(origin) if origin.is_made_by_op else _judge(origin),
            Blame(
                ranks=culprits,
                groups=[first.group],
                victims=sorted(origin.inspected - set(culprits)),
            ),
            because=[_cite(one) for one in sorted(origin.first, key=lambda one: one.rank)[:8]],
            details={
                "op": first.name,
                "group": first.group,
                "seq": first.seq,
                "step": first.step,
                "side": first.side,
                "tensor": first.place,
                "shape": list(first.shape),
                "dtype": first.dtype,
                "nan": first.nan,
                "inf": first.inf,
            },
        )
        yield msgspec.structs.replace(finding, remedies=_advise(origin))


def _judge(origin: Origin) -> Confidence:
    has_nan = any(one.nan for one in origin.first)
    return Confidence.LIKELY if has_nan and is_ordered(origin.first) else Confidence.POSSIBLE


def _name_values(first: NotFinite) -> str:
    found = [f"{count} {name}" for count, name in ((first.nan, "NaN"), (first.inf, "Inf")) if count]
    return " and ".join(found)


def _describe(origin: Origin, first: NotFinite) -> str:
    op = f"{first.name} #{first.seq} of group {first.group}"
    at = f"after {first.step} optimizer steps"
    if origin.is_everywhere and is_ordered(origin.first):
        return f"all ranks gave values that are not finite to {op} {at}: no rank had them first"
    if origin.is_everywhere:
        return (
            f"all ranks gave values that are not finite to ops, first {op} {at}; it is not known "
            f"which rank had them first"
        )
    if len(origin.first) == 1:
        others = "no other rank had any before" if first.is_p2p else "its peers did not"
        return f"rank {first.rank} gave {_name_values(first)} to {op} {at}; {others}"
    who = name_ranks(sorted(one.rank for one in origin.first))
    return f"{who} gave values that are not finite to ops, first {op} {at}"


def _advise(origin: Origin) -> list[str]:
    """Choose what fits; both where it is not sure that an op has made the values."""
    if not origin.is_made_by_op:
        return [_LOOK]
    return [_REDUCE] if _judge_made(origin) is Confidence.LIKELY else [_LOOK, _REDUCE]


def _judge_made(origin: Origin) -> Confidence:
    is_sure = origin.is_everywhere and is_ordered(origin.first) and not origin.is_partial
    return Confidence.LIKELY if is_sure else Confidence.POSSIBLE


def _describe_made(origin: Origin, first: NotFinite) -> str:
    op = f"{first.name} #{first.seq} of group {first.group}"
    what = f"{op} gave {_name_values(first)} in {first.dtype} after {first.step} optimizer steps"
    if origin.is_everywhere:
        return f"{what}, though no rank gave it any: {_guess_cause(first)}"
    who = name_ranks(sorted(one.rank for one in origin.first))
    return f"{what} to {who}, though no rank that was looked at gave it any"


def _guess_cause(first: NotFinite) -> str:
    if "reduce" in first.name and not first.nan:
        return f"the result is too large for {first.dtype}"
    return "it was damaged on its way, or by the op"


def _cite(one: NotFinite) -> Citation:
    shape = "x".join(map(str, one.shape)) or "scalar"
    text = (
        f"rank {one.rank}: {_name_values(one)} in {one.side}put {one.place} ({one.dtype} {shape}) "
        f"of {one.name} #{one.seq} of group {one.group}"
    )
    return Citation(text, one.artifact, one.row)
