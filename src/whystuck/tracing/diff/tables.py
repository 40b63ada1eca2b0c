"""Ops and kernels of two runs side by side, each with how sure it is that it changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, text_column
from whystuck.tracing.diff.side import DEVICE_KINDS, MEASURES, Real, Side, Whole, line_up, pick
from whystuck.tracing.diff.stats import (
    Samples,
    adjust,
    compare_pairs,
    compare_samples,
    merge_blocks,
)

OP_COLUMNS = (
    "kind",
    "name",
    "status",
    "counts_change",
    "a_count",
    "b_count",
    "diff_count",
    "a_sum_ns",
    "b_sum_ns",
    "diff_sum_ns",
    "a_self_ns",
    "b_self_ns",
    "diff_self_ns",
    "a_device_ns",
    "b_device_ns",
    "diff_device_ns",
    "p_value",
    "q_value",
    "a_total_count",
    "b_total_count",
    "a_total_ns",
    "b_total_ns",
)
ALPHA = 0.05
# What takes less of a step is not tested: among thousands of names, some differ by chance.
LEAST_SHARE = 0.0005
# With a known significance, a change of this share of a name's own time is told ...
_LEAST_CHANGE = 0.01
# ... without, it needs to be larger, and to matter to the step.
_UNTESTED_CHANGE = 0.05
_UNTESTED_SHARE = 0.005
_SAME_COUNT = 1e-9


@dataclass(frozen=True)
class Design:
    """How two runs are compared.

    ``unit`` is what a sample is: ``steps``, ``ranks`` (the same in both, one step each) or
    ``none``. ``a_steps`` and ``b_steps`` are the places of the steps that count, ``block`` is how
    many of them in a row make a sample. ``a_ranks`` and ``b_ranks`` are pairs of the same rank.
    """

    unit: str
    a_steps: Whole
    b_steps: Whole
    block: int
    a_ranks: Whole
    b_ranks: Whole
    step_ns: float

    def compare(self, steps: tuple[Real, Real], ranks: tuple[Real, Real]) -> Real:
        """Return p values of columns, from samples of steps or of ranks; NaN when unknown."""
        if self.unit == "steps":
            a, b = (merge_blocks(one, self.block) for one in steps)
            return compare_samples(Samples(a, b))
        if self.unit == "ranks":
            return compare_pairs(ranks[0][self.a_ranks], ranks[1][self.b_ranks])
        return np.full(steps[0].shape[1], np.nan)


def compare_items(a: Side, b: Side, design: Design) -> tuple[Table, Table]:
    """Compare what ran in two runs, by name.

    Counts and times are means of a step of a rank; the last columns are sums over all of them.

    Args:
        a: The first run.
        b: The second.
        design: Which steps are compared, and how.

    Returns:
        The table of ops and other calls of the host, and that of kernels and other device work.
    """
    keys, at_a, at_b = line_up(a.items.keys, b.items.keys)
    values = {}
    for name in MEASURES:
        values[f"a_{name}"] = pick(a.get_items(name)[design.a_steps], at_a)
        values[f"b_{name}"] = pick(b.get_items(name)[design.b_steps], at_b)
    kinds = text_column([key[0] for key in keys])
    is_device = np.isin(kinds.astype(str), DEVICE_KINDS) if len(keys) else np.empty(0, np.bool_)
    main = tuple(
        np.where(is_device, values[f"{side}_sum_ns"], values[f"{side}_self_ns"]) for side in "ab"
    )
    p = _test(a, b, design, (main[0], main[1]), (at_a, at_b))
    made = _describe(values, (main[0], main[1]), p, design)
    made |= {"kind": kinds, "name": text_column([key[1] for key in keys])}
    for name, side, at in (("a", a, at_a), ("b", b, at_b)):
        for column, measure in (("total_count", 0), ("total_ns", 1)):
            sums = side.items.get(measure, len(side.steps)).sum(axis=0, keepdims=True)
            made[f"{name}_{column}"] = pick(sums, at)[0].round().astype(np.int64)
    table = Table({name: made[name] for name in OP_COLUMNS})
    order = np.argsort(-np.abs(main[1].mean(axis=0) - main[0].mean(axis=0)), kind="stable")
    return table.take(order[~is_device[order]]), table.take(order[is_device[order]])


def _test(
    a: Side, b: Side, design: Design, main: tuple[Real, Real], at: tuple[Whole, Whole]
) -> Real:
    """Test what takes a part of the step that matters."""
    most = np.maximum(main[0].mean(axis=0), main[1].mean(axis=0))
    chosen = np.flatnonzero(most >= LEAST_SHARE * design.step_ns)
    p = np.full(len(most), np.nan)
    if not len(chosen):
        return p
    ranks = tuple(
        pick(side.rank_items.get(0, len(side.ranks)), _columns(side, where[chosen]))
        for side, where in zip((a, b), at, strict=True)
    )
    p[chosen] = design.compare((main[0][:, chosen], main[1][:, chosen]), (ranks[0], ranks[1]))
    return p


def _columns(side: Side, at: Whole) -> Whole:
    """Return where the items of one grid are in that of the ranks."""
    place = {key: index for index, key in enumerate(side.rank_items.keys)}
    keys = side.items.keys
    return np.array([-1 if one < 0 else place[keys[one]] for one in at.tolist()], dtype=np.int64)


def _describe(
    values: dict[str, Real], main: tuple[Real, Real], p: Real, design: Design
) -> dict[str, NDArray[np.generic]]:
    made: dict[str, NDArray[np.generic]] = {"p_value": p, "q_value": adjust(p)}
    for name in MEASURES:
        one, other = (values[f"{side}_{name}"].mean(axis=0) for side in "ab")
        for column, value in (("a", one), ("b", other), ("diff", other - one)):
            whole = name != "count"
            made[f"{column}_{name}"] = value.round().astype(np.int64) if whole else value
    counts = values["a_count"], values["b_count"]
    made["counts_change"] = _name_counts(counts)
    made["status"] = _name_status(counts, main, made["q_value"].astype(np.float64), design)
    return made


def _name_counts(counts: tuple[Real, Real]) -> NDArray[np.generic]:
    one, other = (count.mean(axis=0) for count in counts)
    names = np.full(len(one), "unchanged", dtype=object)
    names[other > one * (1 + _SAME_COUNT)] = "increased"
    names[other < one * (1 - _SAME_COUNT)] = "decreased"
    names[one == 0] = "added"
    names[other == 0] = "deleted"
    return names


def _name_status(
    counts: tuple[Real, Real], main: tuple[Real, Real], q: Real, design: Design
) -> NDArray[np.generic]:
    """Tell what was added, removed or changed; a count changed when no two steps agree in it."""
    one, other = (value.mean(axis=0) for value in main)
    gap, most = np.abs(other - one), np.maximum(one, other)
    is_sure = (q < ALPHA) & (gap >= _LEAST_CHANGE * most)
    if design.unit == "none":
        is_sure = (gap >= _UNTESTED_CHANGE * most) & (gap >= _UNTESTED_SHARE * design.step_ns)
    low, high = counts[0].min(axis=0, initial=np.inf), counts[0].max(axis=0, initial=-np.inf)
    is_apart = (counts[1].min(axis=0, initial=np.inf) > high) | (
        counts[1].max(axis=0, initial=-np.inf) < low
    )
    names = np.full(len(one), "unchanged", dtype=object)
    names[is_sure | is_apart] = "changed"
    names[counts[0].sum(axis=0) == 0] = "added"
    names[counts[1].sum(axis=0) == 0] = "removed"
    return names
