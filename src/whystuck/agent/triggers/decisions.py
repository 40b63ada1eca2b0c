"""Whether a rule holds for a job now, and for which of its ranks; pure.

No rule goes by one figure. Steps and ranks are compared by exact tests that hold for any spread of
the figures, and where these cannot tell, the answer is no.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from statistics import fmean, median
from typing import Final

from whystuck.agent.triggers.history import (
    JobHistory,
    Point,
    RankHistory,
    newest,
    values_before,
    values_between,
)
from whystuck.agent.triggers.rules import TriggerKind, TriggerRule

STEP_CHANCE: Final = 1e-8
"""Steady steps look slower by chance less often than this, at each look."""
_RANK_CHANCE: Final = 1e-4
_MIN_STEPS_SEEN: Final = 6
_MIN_BEFORE: Final = 20
_MAX_BEFORE: Final = 240
_MIN_LOOKS: Final = 8
_WINDOWS: Final = 5
"""A rank that waits less than its peers from the start must do so in this many windows."""
_PATIENCE: Final = 1.5
_GPU_SHARE_LOW: Final = 0.9
_GPU_SHARE_SEEN: Final = 0.8
_GPU_MIN_LOOKS: Final = 6
# A job may load data and compile for so long before its devices are said to be idle.
_GPU_STARTUP_S: Final = 600.0
STALE_S: Final = 60.0
"""A rank of which nothing was heard for so long does not count."""
_EXCEPTION_SHARE: Final = 10


@dataclass(frozen=True)
class Decision:
    """A rule holds: for which ranks, why in one sentence, and the figures that say so."""

    ranks: tuple[int, ...]
    reason: str
    values: Mapping[str, float] = field(default_factory=dict)


def decide(
    rule: TriggerRule, history: JobHistory, now_s: float, since_s: float = float("-inf")
) -> Decision | None:
    """Tell whether a rule holds for a job.

    Args:
        rule: The rule.
        history: What was seen of the job.
        now_s: The time, of the clock of the history.
        since_s: What was before that was told already, and does not count.
    """
    return _DECIDERS[rule.when](rule, history, now_s, since_s)


@dataclass(frozen=True)
class _Steps:
    """The steps of a rank now and before; ``chance`` as `higher_chance` tells it."""

    now_s: float
    before_s: float
    chance: float

    @property
    def rise(self) -> float:
        return self.now_s / self.before_s - 1.0 if self.before_s > 0 else 0.0


def _compare_steps(rank: RankHistory, begin_s: float, since_s: float, rise: float) -> _Steps | None:
    """Compare the steps since ``begin_s`` with those before; None unless they rose by ``rise``."""
    points = newest(rank.step_s, begin_s, _MIN_STEPS_SEEN)
    if len(points) < _MIN_STEPS_SEEN or points[0].time_s <= since_s:
        return None
    before = values_before(rank.step_s, len(points), since_s, _MAX_BEFORE)
    if len(before) < _MIN_BEFORE:
        return None
    now = [point.value for point in points]
    usual_s, now_s = median(before), median(now)
    if usual_s <= 0 or now_s < usual_s * (1.0 + rise):
        return None
    return _Steps(now_s, usual_s, higher_chance(now, before))


def _decide_step_time(
    rule: TriggerRule, history: JobHistory, now_s: float, since_s: float
) -> Decision | None:
    begin_s, rise = now_s - rule.for_s, rule.threshold / 100.0
    ranks = _living(history, now_s)
    found = {
        rank: steps
        for rank, one in ranks.items()
        if (steps := _compare_steps(one, begin_s, since_s, rise)) is not None
    }
    sure = [rank for rank, steps in found.items() if steps.chance <= STEP_CHANCE]
    # Ranks that go in step get slow together, but not all are known to be so at once.
    if not sure or (2 * len(sure) < len(ranks) and not _lasts(rule, ranks, sure, now_s, since_s)):
        return None
    worst = max(sure, key=lambda rank: found[rank].rise)
    steps = found[worst]
    return Decision(
        tuple(sorted(found)),
        f"steps take {steps.now_s:.3g} s, {steps.rise:.0%} more than the {steps.before_s:.3g} s "
        "they took before",
        {"step_s": steps.now_s, "step_s_before": steps.before_s, "rise_percent": steps.rise * 100},
    )


def _lasts(
    rule: TriggerRule,
    ranks: Mapping[int, RankHistory],
    sure: list[int],
    now_s: float,
    since_s: float,
) -> bool:
    begin_s = now_s - _PATIENCE * rule.for_s
    longer = [_compare_steps(ranks[one], begin_s, since_s, rule.threshold / 100.0) for one in sure]
    return any(steps is not None and steps.chance <= STEP_CHANCE for steps in longer)


def _decide_rank_slow(
    rule: TriggerRule, history: JobHistory, now_s: float, since_s: float
) -> Decision | None:
    ranks = _living(history, now_s)
    if len(ranks) < 2:  # noqa: PLR2004 - nobody to compare with
        return None
    begin_s = max(now_s - rule.for_s, since_s)
    apart = _decide_apart(rule, ranks, begin_s)
    if apart is not None:
        return apart
    gap = _find_gap(ranks, begin_s, now_s)
    if gap is None or not gap.is_wide(rule.threshold / 100.0) or gap.chance > _RANK_CHANCE:
        return None
    if not (
        _has_slowed(ranks, begin_s, since_s) or _has_always(rule, ranks, gap.rank, now_s, since_s)
    ):
        return None
    return Decision(
        (gap.rank,),
        f"rank {gap.rank} waits for its peers {gap.share:.0%} of the time, and they wait "
        f"{gap.usual:.0%}: it comes last",
        {"waiting_percent": gap.share * 100, "peers_waiting_percent": gap.usual * 100},
    )


def _decide_apart(
    rule: TriggerRule, ranks: Mapping[int, RankHistory], begin_s: float
) -> Decision | None:
    """Find a rank whose steps take longer than those of its peers: they do not go in step."""
    steps = {rank: values_between(one.step_s, begin_s, float("inf")) for rank, one in ranks.items()}
    if any(len(values) < _MIN_STEPS_SEEN for values in steps.values()):
        return None
    middle = {rank: median(values) for rank, values in steps.items()}
    slow = max(middle, key=lambda rank: middle[rank])
    peers = [value for rank, values in steps.items() if rank != slow for value in values]
    usual_s = max(value for rank, value in middle.items() if rank != slow)
    if middle[slow] < usual_s * (1.0 + rule.threshold / 100.0):
        return None
    if higher_chance(steps[slow], peers) > _RANK_CHANCE / len(ranks):
        return None
    rise = middle[slow] / usual_s - 1.0
    return Decision(
        (slow,),
        f"steps of rank {slow} take {middle[slow]:.3g} s, {rise:.0%} more than those of any peer",
        {"step_s": middle[slow], "peers_step_s": usual_s, "rise_percent": rise * 100},
    )


@dataclass(frozen=True)
class _Gap:
    """The rank that waits least: its share of the time, that of the next one and that of most.

    ``chance`` is how likely that is when all wait alike.
    """

    rank: int
    share: float
    following: float
    usual: float
    chance: float

    def is_wide(self, size: float) -> bool:
        """Tell whether it stands alone below its peers, by so much; the next one by half of it."""
        return self.usual - self.share >= size and self.following - self.share >= size / 2


def _find_gap(ranks: Mapping[int, RankHistory], begin_s: float, end_s: float) -> _Gap | None:
    """Find who waits least: without clocks, who never waits for others is who comes last."""
    looks = {rank: values_between(one.waiting, begin_s, end_s) for rank, one in ranks.items()}
    if any(len(values) < _MIN_LOOKS for values in looks.values()):
        return None
    least, following = sorted(looks, key=lambda rank: fmean(looks[rank]))[:2]
    few = looks[least]
    peers = [value for rank, values in looks.items() if rank != least for value in values]
    chance = less_often_chance(int(sum(few)), len(few), int(sum(peers)), len(peers))
    usual = median(fmean(values) for rank, values in looks.items() if rank != least)
    return _Gap(least, fmean(few), fmean(looks[following]), usual, chance * len(ranks))


def _has_slowed(ranks: Mapping[int, RankHistory], begin_s: float, since_s: float) -> bool:
    """Tell whether steps got slower: for those who go in step, by a tenth of the time at least."""
    found = [_compare_steps(one, begin_s, since_s, 0.1) for one in ranks.values()]
    return any(steps is not None and steps.chance <= _RANK_CHANCE for steps in found)


def _has_always(
    rule: TriggerRule, ranks: Mapping[int, RankHistory], rank: int, now_s: float, since_s: float
) -> bool:
    """Tell whether a rank was last in each of some windows; looks may agree by chance in one."""
    for place in range(1, _WINDOWS):
        end_s = now_s - place * rule.for_s
        if end_s - rule.for_s < since_s:
            return False
        gap = _find_gap(ranks, end_s - rule.for_s, end_s)
        if gap is None or gap.rank != rank or not gap.is_wide(rule.threshold / 100.0):
            return False
    return True


def _decide_stall(
    rule: TriggerRule, history: JobHistory, now_s: float, since_s: float
) -> Decision | None:
    limit_s = rule.threshold + rule.for_s
    ages = {
        rank: one.age.value + now_s - one.age.time_s
        for rank, one in _living(history, now_s).items()
        if one.age is not None
    }
    # A stall that was told already began before that.
    stalled = {
        rank: age_s for rank, age_s in ages.items() if age_s > limit_s and now_s - age_s > since_s
    }
    if not stalled:
        return None
    longest_s = max(stalled.values())
    return Decision(
        tuple(sorted(stalled)),
        f"{len(stalled)} of {len(ages)} ranks have made no progress for {longest_s:.0f} s",
        {"stalled_s": longest_s, "ranks_seen": len(ages)},
    )


def _decide_gpu_low(
    rule: TriggerRule, history: JobHistory, now_s: float, since_s: float
) -> Decision | None:
    bar, begin_s = rule.threshold / 100.0, now_s - rule.for_s
    if begin_s < since_s:
        return None
    low = {}
    for rank, one in _living(history, now_s).items():
        points = [point for point in one.gpu if begin_s < point.time_s <= now_s]
        if _is_covered(points, rule.for_s) and _was_in_use(one, bar, now_s):
            values = [point.value for point in points]
            if sum(value < bar for value in values) >= _GPU_SHARE_LOW * len(values):
                low[rank] = fmean(values)
    if not low:
        return None
    mean = fmean(low.values())
    return Decision(
        tuple(sorted(low)),
        f"devices of {len(low)} ranks were in use {mean:.0%} of the last {rule.for_s:.0f} s",
        {"utilization_percent": mean * 100},
    )


def _is_covered(points: list[Point], for_s: float) -> bool:
    if len(points) < _GPU_MIN_LOOKS:
        return False
    return points[-1].time_s - points[0].time_s >= _GPU_SHARE_SEEN * for_s


def _was_in_use(rank: RankHistory, bar: float, now_s: float) -> bool:
    return now_s - rank.first_s > _GPU_STARTUP_S or any(one.value >= bar for one in rank.gpu)


def _living(history: JobHistory, now_s: float) -> dict[int, RankHistory]:
    """Return the ranks of which something was heard lately."""
    return history.living(now_s - STALE_S)


_DECIDERS: Final[
    Mapping[TriggerKind, Callable[[TriggerRule, JobHistory, float, float], Decision | None]]
] = {
    TriggerKind.STEP_TIME: _decide_step_time,
    TriggerKind.RANK_SLOW: _decide_rank_slow,
    TriggerKind.STALL: _decide_stall,
    TriggerKind.GPU_LOW: _decide_gpu_low,
}


def higher_chance(new: Sequence[float], old: Sequence[float]) -> float:
    """Return the chance that ``new`` lies above ``old`` as it does, if nothing had changed.

    This is a precedence test: among all orders of old and new figures, which are equally likely
    when both are of one kind, it counts those in which no more old figures than here lie above
    nearly all new ones. One new figure in ten may be low, as for a step that happened to be quick.
    Returns 1.0 when there is nothing to compare.
    """
    count, before = len(new), len(old)
    if not count or not before:
        return 1.0
    exceptions = count // _EXCEPTION_SHARE
    bar = sorted(new)[exceptions]
    above = before - bisect_left(sorted(old), bar)
    # The old figures above the m-th highest new one, of `count` new and `before` old ones.
    place = count - exceptions
    orders = sum(
        comb(place - 1 + j, j) * comb(before - j + exceptions, exceptions) for j in range(above + 1)
    )
    return orders / comb(count + before, count)


def less_often_chance(few: int, of: int, many: int, out_of: int) -> float:
    """Return the chance of at most ``few`` hits in ``of`` looks, when ``many`` are in ``out_of``.

    Fisher's exact test, one-sided: both are looks at one thing, if nothing differs.
    """
    hits, looks = few + many, of + out_of
    lowest = max(0, hits - out_of)
    total = comb(looks, hits)
    return sum(comb(of, k) * comb(out_of, hits - k) for k in range(lowest, few + 1)) / total
