"""Two runs compared: how much slower a step became, how sure that is, and what explains it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.finding import Gap
from whystuck.evidence.table import Table, text_column, whole_column
from whystuck.tracing.diff.shares import CLASSES
from whystuck.tracing.diff.side import Real, Side, Whole, line_up, pick
from whystuck.tracing.diff.stats import (
    Samples,
    adjust,
    bound_difference,
    compare_pairs,
    compare_samples,
    count_block,
    merge_blocks,
)
from whystuck.tracing.diff.tables import ALPHA, LEAST_SHARE, Design, compare_items
from whystuck.tracing.diff.trees import compare_trees
from whystuck.tracing.host.steps import NO_STEP

# Runs do the same work where most ops occur about as often, by no more than this factor.
_SAME_WORK = 1.1
_WORK = ("op", "kernel", "copy", "call")
_STEPS = "profiler steps"
_ADVICE = "call `profiler.step()` after each step in both"
# Without steps of their own, ranks are samples from so many on.
_LEAST_RANKS = 4
# A step that takes this many times the middle one is told apart, ...
_ODD_FACTOR = 2.0
# ... where there are this many steps, and no more than this share of them is odd.
_ODD_FROM = 5
_ODD_SHARE = 0.2
# A rank is named when its own time grew by at least this share of what the step did, ...
_CULPRIT_SHARE = 0.5
# ... and that of the others, of which there are as many at least, by no more than this.
_OTHER_SHARE = 0.25


@dataclass(frozen=True)
class StepChange:
    """How the time of a step changed, in ns; ``p`` is NaN when the significance is unknown."""

    a_ns: float
    b_ns: float
    interval_ns: tuple[float, float] | None
    p: float
    a_left_out: int
    b_left_out: int


def compare_sides(a: Side, b: Side) -> Mapping[str, Table]:
    """Compare two runs.

    Args:
        a: The first run.
        b: The second.

    Returns:
        The tables: ``diff_summary`` (one row; none when nothing can be compared), ``diff_classes``
        and ``diff_changes``, whose differences add up to that of the step, ``diff_ranks``,
        ``diff_ops``, ``diff_kernels`` and ``diff_tree``.
    """
    if find_obstacle(a, b):
        return {"diff_summary": Table()}
    design, change = _plan(a, b)
    ops, kernels = compare_items(a, b, design)
    changes = _compare_shares(a, b, design)
    return {
        "diff_summary": _summarize(a, b, design, change),
        "diff_classes": _sum_classes(changes),
        "diff_changes": changes,
        "diff_ranks": _compare_ranks(a, b, change),
        "diff_ops": ops,
        "diff_kernels": kernels,
        "diff_tree": compare_trees(a, b),
    }


def find_obstacle(a: Side, b: Side) -> Gap | None:
    """Find what two runs lack to be compared.

    A whole trace, and a step that something else marks, may stand for another amount of work: then
    most ops occur more often in one of the runs.

    Args:
        a: The first run.
        b: The second.

    Returns:
        What is missing, and in which of them; None where they can be compared.
    """
    return _find_missing(a, b) or _find_other_work(a, b)


def _find_missing(a: Side, b: Side) -> Gap | None:
    for name, side in (("A", a), ("B", b)):
        if not side.steps:
            return Gap(None, "events", f"in {name}: there are none that could be compared")
        if len(side.marks) > 1:
            return Gap(None, _STEPS, f"in {name}: only some ranks have them, or other ones")
    if (NO_STEP in a.steps) == (NO_STEP in b.steps):
        return None
    bare = "A" if NO_STEP in a.steps else "B"
    return Gap(None, _STEPS, f"in {bare}: the other run has some; {_ADVICE}")


def _find_other_work(a: Side, b: Side) -> Gap | None:
    if a.marks == b.marks and NO_STEP not in a.steps:
        return None
    ratio = _compare_counts(a, b)
    if 1 / _SAME_WORK <= ratio <= _SAME_WORK:
        return None
    more, less = ("B", "A") if ratio > 1 else ("A", "B")
    times = f"ops run {max(ratio, 1 / ratio):.3g} times as often in {more} as in {less}"
    if NO_STEP in a.steps:
        return Gap(None, _STEPS, f"{times}: the traces hold other numbers of steps; {_ADVICE}")
    marks = [f"the {mark} in {name}" for name, one in (("A", a), ("B", b)) for mark in one.marks]
    return Gap(None, _STEPS, f"{' and '.join(marks)} marks the steps, and {times}; {_ADVICE}")


def _compare_counts(a: Side, b: Side) -> float:
    """Return how many times as often most ops and kernels run in a step of the second run."""
    keys, at_a, at_b = line_up(a.items.keys, b.items.keys)
    of_a, of_b = (
        pick(side.get_items("count"), at).mean(axis=0) for side, at in ((a, at_a), (b, at_b))
    )
    is_work = np.array([key[0] in _WORK for key in keys], dtype=np.bool_)
    both = (of_a > 0) & (of_b > 0) & is_work
    return float(np.median(of_b[both] / of_a[both])) if both.any() else 1.0


def _plan(a: Side, b: Side) -> tuple[Design, StepChange]:
    """Choose which steps count, and test the time of the step."""
    of_a, of_b = a.step_ns, b.step_ns
    every = (np.arange(len(of_a)), np.arange(len(of_b)))
    usual = (_find_usual(of_a), _find_usual(of_b))
    left_out = len(of_a) - len(usual[0]) + len(of_b) - len(usual[1])
    # Rare long steps hide a change of all others, unless they are the change.
    chosen = usual if left_out and not _differ_in_means(of_a, of_b) else every
    p, block = _test_steps(of_a[chosen[0]], of_b[chosen[1]])
    if left_out:
        # Two looks at the data are twice as likely to find something.
        p = 1.0 if p > 0.5 else 2 * p  # noqa: PLR2004 - NaN stays
    unit = "steps" if not math.isnan(p) else "none"
    pairs = _pair_ranks(a, b)
    interval = bound_difference(
        *(
            merge_blocks(one[at][:, None], block)[:, 0]
            for one, at in zip((of_a, of_b), chosen, strict=True)
        )
    )
    if unit == "none" and len(pairs[0]) >= _LEAST_RANKS and len(a.steps) == len(b.steps) == 1:
        unit, p = "ranks", _test_ranks(a, b, pairs)
    step_ns = (float(of_a[chosen[0]].mean()), float(of_b[chosen[1]].mean()))
    design = Design(unit, *chosen, block, *pairs, max(step_ns))
    change = StepChange(
        *step_ns, interval, p, len(of_a) - len(chosen[0]), len(of_b) - len(chosen[1])
    )
    return design, change


def _find_usual(step_ns: Real) -> Whole:
    every = np.arange(len(step_ns))
    if len(step_ns) < _ODD_FROM:
        return every
    usual = np.flatnonzero(step_ns <= _ODD_FACTOR * np.median(step_ns))
    return usual if len(usual) >= (1 - _ODD_SHARE) * len(step_ns) else every


def _test_steps(a: Real, b: Real) -> tuple[float, int]:
    block = max(count_block(a), count_block(b))
    samples = Samples(merge_blocks(a[:, None], block), merge_blocks(b[:, None], block))
    p = float(compare_samples(samples)[0])
    # Means that moved one way and middles that moved the other tell nothing.
    means, middles = b.mean() - a.mean(), np.median(b) - np.median(a)
    is_split = means * middles < 0 and not _differ_in_means(a, b)
    return (1.0 if p < ALPHA and is_split else p), block


def _differ_in_means(a: Real, b: Real) -> bool:
    """Tell whether the means alone differ by more than chance."""
    block = max(count_block(a), count_block(b))
    merged = (merge_blocks(one[:, None], block)[:, 0] for one in (a, b))
    interval = bound_difference(*merged)
    return interval is not None and interval[0] * interval[1] > 0


def _test_ranks(a: Side, b: Side, pairs: tuple[Whole, Whole]) -> float:
    """Test the time of ranks: all wait for each other, so that their own time must differ too."""
    found = []
    for name in ("wall_ns", "own_ns"):
        values = [
            np.array([[getattr(side.ranks[at], name).mean()] for at in where.tolist()])
            for side, where in zip((a, b), pairs, strict=True)
        ]
        found.append(float(compare_pairs(*values)[0]))
    return max(found)


def _pair_ranks(a: Side, b: Side) -> tuple[Whole, Whole]:
    """Return where the same ranks are in both runs; nothing unless all ranks are the same."""
    of_a, of_b = ([one.rank for one in side.ranks] for side in (a, b))
    nothing = np.empty(0, dtype=np.int64)
    if set(of_a) != set(of_b) or len(set(of_a)) != len(of_a) or len(of_a) != len(of_b):
        return nothing, nothing
    order = sorted(of_a)
    return whole_column([of_a.index(one) for one in order]), whole_column(
        [of_b.index(one) for one in order]
    )


def _summarize(a: Side, b: Side, design: Design, change: StepChange) -> Table:
    low, high = change.interval_ns or (math.nan, math.nan)
    row: dict[str, int | float | str] = {
        "a_step_ns": round(change.a_ns),
        "b_step_ns": round(change.b_ns),
        "low_ns": low,
        "high_ns": high,
        "p_value": change.p,
        "unit": design.unit,
        "is_whole_trace": int(NO_STEP in a.steps),
        "block": design.block,
    }
    for name, side, left_out in (("a", a, change.a_left_out), ("b", b, change.b_left_out)):
        row |= {
            f"{name}_steps": len(side.steps),
            f"{name}_left_out": left_out,
            f"{name}_ranks": len(side.ranks),
            f"{name}_name": side.label,
        }
    return Table(
        {
            name: text_column([value]) if isinstance(value, str) else np.array([value])
            for name, value in row.items()
        }
    )


def _compare_shares(a: Side, b: Side, design: Design) -> Table:
    """Compare the parts of a step; the differences add up to that of the step."""
    keys, at_a, at_b = line_up(a.shares.keys, b.shares.keys)
    of_a = pick(a.get_shares()[design.a_steps], at_a)
    of_b = pick(b.get_shares()[design.b_steps], at_b)
    one, other = of_a.mean(axis=0), of_b.mean(axis=0)
    chosen = np.flatnonzero(np.maximum(one, other) >= LEAST_SHARE * design.step_ns)
    p = np.full(len(keys), np.nan)
    if len(chosen):
        ranks = [
            pick(side.rank_shares.get(0, len(side.ranks)), at[chosen])
            for side, at in ((a, at_a), (b, at_b))
        ]
        p[chosen] = design.compare((of_a[:, chosen], of_b[:, chosen]), (ranks[0], ranks[1]))
    order = np.argsort(-np.abs(other - one), kind="stable")
    columns: dict[str, NDArray[np.generic]] = {
        name: text_column([keys[row][at] for row in order.tolist()])
        for at, name in enumerate(("class", "kind", "name"))
    }
    columns |= {
        "a_ns": one[order],
        "b_ns": other[order],
        "delta_ns": (other - one)[order],
        "p_value": p[order],
        "q_value": adjust(p)[order],
    }
    return Table(columns)


def _sum_classes(changes: Table) -> Table:
    at = np.array([CLASSES.index(one) for one in changes["class"].tolist()], dtype=np.int64)
    sums = {
        name: np.bincount(at, weights=changes[name], minlength=len(CLASSES))
        for name in ("a_ns", "b_ns", "delta_ns")
    }
    return Table({"class": text_column(CLASSES), **sums})


def _compare_ranks(a: Side, b: Side, change: StepChange) -> Table:
    """Compare ranks, and tell which of them alone became slower: by the time without waits."""
    pairs = _pair_ranks(a, b)
    ranks = [a.ranks[at].rank for at in pairs[0].tolist()]
    columns: dict[str, NDArray[np.generic]] = {"rank": whole_column(ranks)}
    gap = np.zeros(len(ranks))
    p = np.full(len(ranks), np.nan)
    for name in ("wall_ns", "own_ns"):
        for label, side, where in (("a", a, pairs[0]), ("b", b, pairs[1])):
            values = [float(getattr(side.ranks[at], name).mean()) for at in where.tolist()]
            columns[f"{label}_{name}"] = np.array(values, dtype=np.float64)
        gap = columns[f"b_{name}"].astype(np.float64) - columns[f"a_{name}"].astype(np.float64)
    for rows, own in _group_ranks(a, b, pairs):
        p[rows] = compare_samples(own)
    columns["delta_own_ns"] = gap
    columns["p_value"] = p
    columns["is_slower"] = _find_slower(gap, adjust(p), change.b_ns - change.a_ns)
    return Table(columns)


def _group_ranks(
    a: Side, b: Side, pairs: tuple[Whole, Whole]
) -> Iterator[tuple[list[int], Samples]]:
    """Put the own times of ranks that have as many steps side by side: a column each."""
    groups: dict[tuple[int, int], list[int]] = {}
    own = [
        [side.ranks[at].own_ns for at in where] for side, where in zip((a, b), pairs, strict=True)
    ]
    for row, (one, other) in enumerate(zip(*own, strict=True)):
        groups.setdefault((len(one), len(other)), []).append(row)
    for rows in groups.values():
        yield rows, Samples(*(np.stack([side[row] for row in rows], axis=1) for side in own))


def _find_slower(gap: Real, q: Real, step_ns: float) -> NDArray[np.bool_]:
    none = np.zeros(len(gap), dtype=np.bool_)
    if len(gap) < 2 or step_ns <= 0:  # noqa: PLR2004 - a rank alone has no peers
        return none
    slower = (gap >= _CULPRIT_SHARE * step_ns) & (q < ALPHA)
    rest = gap[~slower]
    is_clear = 2 * int(slower.sum()) <= len(gap) and bool((rest <= _OTHER_SHARE * step_ns).all())
    return slower if is_clear else none
