"""What ran on devices, by class and name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.segments import Real, Whole, find_quantiles, number_codes, sum_groups
from whystuck.tracing.classes import CLASS_NAMES, KernelClass
from whystuck.tracing.metric import Metric, of_devices
from whystuck.tracing.view import TraceView

_COLUMNS = (
    "rank",
    "class",
    "name",
    "count",
    "sum_ns",
    "mean_ns",
    "std_ns",
    "min_ns",
    "p50_ns",
    "p95_ns",
    "max_ns",
)
OTHERS = "others"
_CLASS_TEXT = text_column([CLASS_NAMES[kind] for kind in KernelClass])


def measure_kernels(view: TraceView, options: TraceOptions) -> Table:
    """Sum the work of the devices of a rank up by class and name.

    ``std_ns`` is the standard deviation of a sample (n - 1), NaN where there is one piece of work
    only; quantiles lie between two values by linear interpolation.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row for each class and name, by class, and those with most time first.
    """
    del options
    rows = view.device_rows
    duration = view.events.duration_ns[rows]
    kinds = len(KernelClass)
    keys, group = number_codes(
        view.events.name[rows].astype(np.int64) * kinds + view.device_class,
        kinds * len(view.trace.names),
    )
    size = len(keys)
    count = np.bincount(group, minlength=size)
    total = sum_groups(duration, group, size)
    mean = total / np.maximum(count, 1)
    low, p50, p95, high = find_quantiles(duration, group, size, (0.0, 0.5, 0.95, 1.0))
    squares = np.bincount(group, weights=(duration - mean[group]) ** 2, minlength=size)
    columns = (
        view.rank_column(size),
        _CLASS_TEXT[keys % kinds],
        text_column([view.trace.names[key] for key in (keys // kinds).tolist()]),
        count,
        total,
        np.rint(mean).astype(np.int64),
        _find_deviation(squares, count),
        low,
        p50,
        p95,
        high,
    )
    table = Table.of(_COLUMNS, columns)
    return table.take(np.lexsort((-total, keys % kinds)))


def fold_kernels(kernels: Table, top: int) -> Table:
    """Keep the kernels of each rank and class that took most time, and put the others together.

    Count, sum, mean, standard deviation, least and most of ``others`` are those of all their work,
    as if they had one name. Their quantiles cannot be told from the figures of names: -1.

    Args:
        kernels: The table ``kernels``, of one rank or of many.
        top: How many names to keep of each rank and class.

    Returns:
        A table of the same columns.
    """
    place, group, size = _rank_in_groups(kernels)
    is_kept = place < top
    folded = ~is_kept
    if not folded.any():
        return kernels
    rest, group = kernels.take(folded), group[folded]
    count = sum_groups(rest["count"], group, size)
    some = np.flatnonzero(count)
    total = sum_groups(rest["sum_ns"], group, size)
    mean = total / np.maximum(count, 1)
    # The squares within names, and those of their means around the mean of all.
    own = rest["sum_ns"] / rest["count"]
    within = np.nan_to_num(rest["std_ns"]) ** 2 * (rest["count"] - 1)
    between = rest["count"] * (own - mean[group]) ** 2
    squares = np.bincount(group, weights=within + between, minlength=size)
    low = np.full(size, np.iinfo(np.int64).max)
    high = np.zeros(size, dtype=np.int64)
    np.minimum.at(low, group, rest["min_ns"])
    np.maximum.at(high, group, rest["max_ns"])
    first = np.searchsorted(group[order := np.argsort(group, kind="stable")], some)
    sample = order[first]
    unknown = np.full(len(some), -1, dtype=np.int64)
    others = {
        "rank": rest["rank"][sample],
        "class": rest["class"][sample],
        "name": text_column([OTHERS] * len(some)),
        "count": count[some],
        "sum_ns": total[some],
        "mean_ns": np.rint(mean[some]).astype(np.int64),
        "std_ns": _find_deviation(squares, count)[some],
        "min_ns": low[some],
        "p50_ns": unknown,
        "p95_ns": unknown,
        "max_ns": high[some],
    }
    kept = kernels.take(is_kept)
    return Table({name: np.concatenate([kept[name], others[name]]) for name in _COLUMNS})


def _rank_in_groups(kernels: Table) -> tuple[Whole, Whole, int]:
    """The place of each row by time in its rank and class, its group, and how many there are."""
    _, rank = np.unique(kernels["rank"], return_inverse=True)
    _, kind = np.unique(kernels["class"].astype(str), return_inverse=True)
    _, group = np.unique(rank * (len(KernelClass) + 1) + kind, return_inverse=True)
    size = int(group.max()) + 1 if len(group) else 0
    order = np.lexsort((-kernels["sum_ns"], group))
    count = np.bincount(group, minlength=size)
    place = np.empty(len(group), dtype=np.int64)
    place[order] = np.arange(len(group)) - np.repeat(np.cumsum(count) - count, count)
    return place, group, size


def _find_deviation(squares: NDArray[Any], count: Whole) -> Real:
    some = count > 1
    variance: Real = np.full(len(count), np.nan)
    variance[some] = squares[some] / (count[some] - 1)
    deviation: Real = np.sqrt(variance)
    return deviation


METRIC = Metric("kernels", _COLUMNS, measure_kernels, of=of_devices)
