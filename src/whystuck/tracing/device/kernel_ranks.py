"""The same kernels on all ranks: where they take longest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from whystuck.evidence.table import Table, concat_tables, text_column
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankTables
from whystuck.tracing.arrays.segments import Real, Whole, sum_groups
from whystuck.tracing.metric import CrossMetric

_NAME = "kernel_ranks"
_COLUMNS = (
    "class",
    "name",
    "ranks",
    "count",
    "sum_ns",
    "mean_ns",
    "std_ns",
    "min_rank",
    "min_mean_ns",
    "max_rank",
    "max_mean_ns",
    "spread",
)


def measure_kernel_ranks(ranks: Sequence[RankTables], options: TraceOptions) -> Mapping[str, Table]:
    """Compare the mean duration of each kernel over ranks.

    ``mean_ns`` is the mean over ranks of their means, ``std_ns`` the standard deviation of those (a
    sample, NaN for one rank); ``min_rank`` and ``max_rank`` are the ranks on which it is least and
    most, the first of several; ``spread`` is most minus least, by the mean.

    Args:
        ranks: The tables of each rank.
        options: Not used.

    Returns:
        The table ``kernel_ranks``: a row for each class and name, those with most time first.
    """
    del options
    table = concat_tables([one.tables.get("kernels", Table()) for one in ranks])
    if not table.columns:
        return {_NAME: Table(dict.fromkeys(_COLUMNS, np.empty(0, dtype=np.int64)))}
    codes: dict[tuple[str, str], int] = {}
    keys = zip(table["class"].tolist(), table["name"].tolist(), strict=True)
    group = np.fromiter(
        (codes.setdefault(key, len(codes)) for key in keys), dtype=np.int64, count=len(table)
    )
    size = len(codes)
    mean = table["sum_ns"] / np.maximum(table["count"], 1)
    count = np.bincount(group, minlength=size)
    middle = np.bincount(group, weights=mean, minlength=size) / np.maximum(count, 1)
    total = sum_groups(table["sum_ns"], group, size)
    first, last = _find_ends(mean, group, count)
    low, high = mean[first], mean[last]
    columns = (
        text_column([kind for kind, _ in codes]),
        text_column([name for _, name in codes]),
        count,
        sum_groups(table["count"], group, size),
        total,
        np.rint(middle).astype(np.int64),
        _find_deviation(mean, middle, group, count),
        table["rank"][first],
        np.rint(low).astype(np.int64),
        table["rank"][last],
        np.rint(high).astype(np.int64),
        np.divide(high - low, middle, out=np.zeros(size), where=middle > 0),
    )
    made = Table.of(_COLUMNS, columns)
    return {_NAME: made.take(np.argsort(-total, kind="stable"))}


def _find_ends(mean: Real, group: Whole, count: Whole) -> tuple[Whole, Whole]:
    """The rows with the least and the most of each group; of equal ones, the first."""
    begin = np.cumsum(count) - count
    least = np.lexsort((mean, group))[begin]
    most = np.lexsort((-mean, group))[begin]
    return least, most


def _find_deviation(mean: Real, middle: Real, group: Whole, count: Whole) -> Real:
    squares = np.bincount(group, weights=(mean - middle[group]) ** 2, minlength=len(count))
    variance = np.divide(squares, count - 1, out=np.full(len(count), np.nan), where=count > 1)
    deviation: Real = np.sqrt(variance)
    return deviation


METRIC = CrossMetric((_NAME,), ("kernels",), measure_kernel_ranks)
