"""Kernels that are so short that starting them costs more than running them."""

from __future__ import annotations

import numpy as np

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.segments import number_codes, sum_groups
from whystuck.tracing.classes import CLASS_NAMES, KernelClass
from whystuck.tracing.metric import Metric, of_devices
from whystuck.tracing.view import TraceView

_COLUMNS = ("rank", "class", "name", "count", "sum_ns", "gap_ns")
_CLASS_TEXT = text_column([CLASS_NAMES[kind] for kind in KernelClass])


def measure_short_kernels(view: TraceView, options: TraceOptions) -> Table:
    """Sum up kernels that took less than the limit; copies and fills do not count.

    ``gap_ns`` is the time before them in which their device ran nothing at all.

    Args:
        view: The trace.
        options: ``short_kernel_ns`` is the limit.

    Returns:
        A row for each class and name, those with the most time in and before them first.
    """
    gaps = view.device_gaps
    rows = view.device_rows[gaps.position]
    classes = view.device_class[gaps.position]
    duration = view.events.duration_ns[rows]
    is_short = (duration < options.short_kernel_ns) & (classes != KernelClass.MEMORY)
    kinds = len(KernelClass)
    keys, group = number_codes(
        view.events.name[rows[is_short]].astype(np.int64) * kinds + classes[is_short],
        kinds * len(view.trace.names),
    )
    size = len(keys)
    columns = (
        view.rank_column(size),
        _CLASS_TEXT[keys % kinds],
        text_column([view.trace.names[key] for key in (keys // kinds).tolist()]),
        np.bincount(group, minlength=size),
        sum_groups(duration[is_short], group, size),
        sum_groups(gaps.gap_ns[is_short], group, size),
    )
    table = Table.of(_COLUMNS, columns)
    return table.take(np.argsort(-(table["sum_ns"] + table["gap_ns"]), kind="stable"))


METRIC = Metric("short_kernels", _COLUMNS, measure_short_kernels, of=of_devices)
