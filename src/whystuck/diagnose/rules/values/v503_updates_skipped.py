"""V503 updates-skipped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.values.skipped_updates import (
    Series,
    Skipping,
    are_connected,
    compare_skips,
    find_skipping,
    find_source,
    list_series,
)
from whystuck.diagnose.algorithms.values.spread import GUARD, find_members
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.ops.inspection import Inspection, NotFinite, ScalerUpdate
from whystuck.evidence.ranks import name_ranks

_WHO = {
    "scaler": "`GradScaler`",
    "deepspeed": "the loss scaler of DeepSpeed",
    GUARD: "a check in the job",
}
_MAX_CITED = 8
_SHARE = (
    "have all ranks decide alike: all_reduce what each has found before the step; with FSDP use "
    "`torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler`"
)
_LOOK = "`--inspect finite` tells which rank gives values that are not finite, and to which op"
_BATCHES = "look at the batches and the loss of the ranks named, at the steps that were skipped"
_LOSS = (
    "print the loss before it is scaled: when it is NaN or Inf itself, no scale helps; lower the "
    "learning rate, clip gradients, or go back to a checkpoint from before that step"
)
_BFLOAT = "train in bfloat16, whose range is that of float32 and which needs no scaler"


class UpdatesSkipped(Rule):
    """A gradient scaler or a check for NaN skips many optimizer steps: the model learns little.

    ## What it means

    A gradient scaler (`torch.amp.GradScaler`) skips an optimizer step when a gradient is NaN or
    Inf, and lowers its scale. That happens a few times at the start, and rarely later. When it goes
    on, the loss itself is not finite, or gradients overflow at any scale: the job computes and
    communicates as ever, its loss curve is flat, and nothing fails. A check of the job that leaves
    out the step of a bad batch hides the same.

    When one rank skips a step that others make, its parameters differ from theirs from then on.

    ## How it is found

    Every item of `--inspect` but `print`, `sync` and `call` counts the updates that each scaler
    decides on, and those it skips. It follows `torch.amp.GradScaler`, classes derived from it such
    as FSDP's, and the scalers of DeepSpeed. A step that a check of the job leaves out is seen where
    gradients that are not finite are cleared by `zero_grad` with no step since they were cleared
    before.

    A fifth of the last 100 updates, and at least five, is too much. The search for the scale is
    left out: the skips with which a new scaler begins as long as its scale is above 1, and those of
    the ten updates after them, until three in a row are made. A scale that skips have brought below
    1 and that has not grown since is found, too, with fewer skips. A skip on some ranks only is
    found at the first one, where ranks communicate between two updates.

    With `finite` or `stats`, a rank is named that alone gave values which are not finite in at
    least four fifths of the skipped updates. Else no rank is: gradients are reduced, so all ranks
    skip together.

    Of logs alone, it is the error of a scaler of DeepSpeed whose scale cannot be lowered any more,
    or what loops print of each step: a count of skipped steps that grows as fast as that of all
    steps, to the end, or a scale of the loss that falls to nothing and does not grow again.
    Six skips in a row tell the same, each at the scale that the one before left, as DeepSpeed, apex
    and fairseq print them, when no steps follow. It is no search of a new scaler where DeepSpeed
    counts more steps than that takes, or the scale is below 1.

    `details`: `source` (`scaler`, `deepspeed` or `guard`), `reason` (`skips`, `falling` or
    `ranks-differ`), `skipped` `of` the last updates, `since_step` and `since_update` of the first
    of them, `scale_from` and `scale_to`, and `skipped_by_rank` where ranks differ.

    ## False alarms

    Ranks that train models of their own, with a scaler each, but exchange something else between
    steps. What a check leaves out before `backward` is not seen: there are no gradients then.

    ## What to do

    Find out whether the loss is finite before it is scaled. When it is, gradients overflow: lower
    the learning rate, clip gradients, or train in bfloat16. When it is not, look at its first
    batch.
    """

    code = codes.UPDATES_SKIPPED
    name = "updates-skipped"
    needs = ("inspections", "logs")
    remedies: ClassVar[tuple[str, ...]] = (_LOSS, _BFLOAT)

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the series in which most is wrong."""
        inspections, members = scene.evidence.inspections, find_members(scene.evidence)
        found = []
        for (source, _, _), by_rank in sorted(list_series(inspections).items()):
            judged = {
                rank: one
                for rank, series in by_rank.items()
                if (one := find_skipping(series, policy)) is not None
            }
            apart = compare_skips(by_rank)
            odd = apart if are_connected(by_rank) else {}
            if judged or odd:
                since = min((one.first.updates for one in judged.values()), default=0)
                giver = None if odd else find_source(inspections, by_rank, since, members)
                # The last lines of some ranks may be missing: all of them skip alike all the same.
                judged = judged if apart else _spread(judged, by_rank)
                found.append(_Found(source, by_rank, judged, odd, giver))
        if found:
            yield self._make(max(found, key=_weigh), inspections)
        else:
            yield from (tell_case(self, case) for case in scene.story.of(self.code))

    def _make(self, found: _Found, inspections: Sequence[Inspection]) -> Finding:
        culprits = found.culprits
        finding = self.make_finding(
            _describe(found),
            _judge(found),
            Blame(ranks=sorted(culprits), victims=sorted(set(found.by_rank) - culprits)),
            because=list(_cite(found)),
            details=_detail(found),
            measures={"skipped_share": found.skips / found.updates},
        )
        return replace(finding, remedies=_advise(found, inspections))


@dataclass(frozen=True)
class _Found:
    """One series with what is wrong in it.

    ``judged`` are the ranks that skip too much, ``odd`` those that skip what a peer makes, and
    ``giver`` those that alone gave values which are not finite.
    """

    source: str
    by_rank: Mapping[int, Series]
    judged: Mapping[int, Skipping]
    odd: Mapping[int, frozenset[int]]
    giver: tuple[frozenset[int], NotFinite] | None

    @property
    def culprits(self) -> set[int]:
        """The ranks that are why; none where all of them skip alike."""
        named = set(self.odd or (self.giver[0] if self.giver else self.judged))
        return set() if named == set(self.by_rank) else named

    @property
    def worst(self) -> Series:
        """The updates of the rank that skips most."""
        ranks = self.odd or self.judged
        return max((self.by_rank[rank] for rank in ranks), key=lambda one: one.last.skips)

    @property
    def updates(self) -> int:
        """How many of the last updates are told of."""
        if self.worst.rank in self.judged:
            return self.judged[self.worst.rank].updates
        return self.worst.last.updates

    @property
    def skips(self) -> int:
        """How many of them were skipped."""
        if self.worst.rank in self.judged:
            return self.judged[self.worst.rank].skips
        return self.worst.last.skips

    @property
    def first(self) -> ScalerUpdate:
        """The first skip of those that are too many, or that a peer has not made."""
        if not self.odd:
            return self.judged[self.worst.rank].first
        number, rank = min((min(numbers), rank) for rank, numbers in self.odd.items())
        return next(row for row in self.by_rank[rank].rows if row.updates == number)

    @property
    def reason(self) -> str:
        """What is wrong, in a word."""
        if self.odd:
            return "ranks-differ"
        return "falling" if all(one.is_falling for one in self.judged.values()) else "skips"


def _spread(judged: Mapping[int, Skipping], by_rank: Mapping[int, Series]) -> dict[int, Skipping]:
    """Judge all ranks as the worst of them."""
    worst = max(judged.values(), key=lambda one: one.skips)
    return {rank: judged.get(rank, worst) for rank in by_rank}


def _weigh(found: _Found) -> tuple[bool, int]:
    return bool(found.odd), found.skips


def _judge(found: _Found) -> Confidence:
    """What was counted is certain; who and why is not."""
    is_counted = found.reason == "skips" and not found.culprits and found.source != GUARD
    return Confidence.CERTAIN if is_counted else Confidence.LIKELY


def _describe(found: _Found) -> str:
    if found.odd:
        return _describe_odd(found)
    who = name_ranks(found.judged) if len(found.judged) < len(found.by_rank) else "all ranks"
    skipped = f"{found.skips} of the last {found.updates} optimizer steps"
    way = _name_way(found.worst)
    if found.reason == "falling":
        return f"the loss scale {way} on {who} and does not grow; {skipped} were skipped"
    text = f"{who} skipped {skipped}, since step {found.first.step}: {_WHO[found.source]} found "
    text += "gradients that are not finite"
    if way:
        text += f"; its scale {way}"
    if found.giver:
        ranks, op = found.giver
        text += f"; {name_ranks(ranks)} alone gave some, first to {op.name} #{op.seq} of group "
        text += op.group
    return text


def _describe_odd(found: _Found) -> str:
    count = max(len(numbers) for numbers in found.odd.values())
    steps = f"{count} optimizer step{'s' if count > 1 else ''}"
    since = f"first after step {found.first.step}"
    if not found.culprits:
        return (
            f"all ranks skip optimizer steps that others make, up to {steps}, {since}: their "
            f"parameters are not updated alike"
        )
    return (
        f"{name_ranks(found.culprits)} skipped {steps} that other ranks made, {since}: parameters "
        f"are not updated alike"
    )


def _name_way(series: Series) -> str:
    """Say where the scale went, nothing when there is none."""
    first, last = _get_scales(series)
    if first is None or last is None or first == last:
        return ""
    return f"{'fell' if last < first else 'rose'} from {first:g} to {last:.3g}"


def _get_scales(series: Series) -> tuple[float | None, float | None]:
    """Return the first scale that is known and the last one."""
    scales = [row.scale for row in series.rows if row.scale is not None]
    return (scales[0], scales[-1]) if scales else (None, None)


def _detail(found: _Found) -> dict[str, Any]:
    scale_from, scale_to = _get_scales(found.worst)
    details: dict[str, Any] = {
        "source": found.source,
        "reason": found.reason,
        "skipped": found.skips,
        "of": found.updates,
        "since_step": found.first.step,
        "since_update": found.first.updates,
        "scale_from": scale_from,
        "scale_to": scale_to,
    }
    if found.odd:
        ranks = sorted(found.by_rank)
        details["skipped_by_rank"] = {str(rank): found.by_rank[rank].last.skips for rank in ranks}
    return details


def _cite(found: _Found) -> Iterator[Citation]:
    for rank in sorted(found.odd or found.judged)[:_MAX_CITED]:
        row = found.by_rank[rank].last
        scale = "" if row.scale is None else f", scale {row.scale:.3g}"
        text = f"rank {rank}: {row.skips} of {row.updates} updates skipped, {row.step} steps made"
        yield Citation(text + scale, row.artifact, row.row)


def _advise(found: _Found, inspections: Sequence[Inspection]) -> list[str]:
    if found.odd:
        return [_SHARE]
    is_seen = any(word in one.spec for one in inspections for word in ("finite", "stats"))
    first = [_BATCHES] if found.culprits else []
    if not (is_seen or first):
        first = [_LOOK]
    return [*first, _LOSS, *([_BFLOAT] if found.source != GUARD else [])]
