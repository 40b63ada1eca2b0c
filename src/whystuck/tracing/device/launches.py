"""What it took to launch the work of devices, and how long the work then waited."""

from __future__ import annotations

import numpy as np

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.segments import (
    Whole,
    find_quantiles,
    number_codes,
    number_values,
    order_in_groups,
    sum_groups,
)
from whystuck.tracing.metric import Metric, of_devices
from whystuck.tracing.view import TraceView

_COLUMNS = ("rank", "correlation", "api", "cpu_ns", "gpu_ns", "delay_ns")
_SUMMARY_COLUMNS = (
    "rank",
    "api",
    "count",
    "cpu_ns",
    "gpu_ns",
    "delay_p50_ns",
    "delay_p99_ns",
    "late_count",
    "short_count",
)


def measure_launches(view: TraceView, options: TraceOptions) -> Table:
    """List the launches of work in the order in which the host made them.

    ``api`` is the call as the trace names it: of a runtime, of a driver, or the launch of a graph,
    which launches many kernels with one correlation. ``cpu_ns`` is the duration of the call,
    ``gpu_ns`` that of the work, ``delay_ns`` the time from the end of the call to the start of the
    work, 0 where that began before.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row for each piece of work whose launch is in the trace.
    """
    del options
    events = view.events
    work, calls = _find_pairs(view)
    names = text_column(view.trace.names)
    values = (
        view.rank_column(len(work)),
        events.correlation[work],
        names[events.name[calls]],
        events.duration_ns[calls],
        events.duration_ns[work],
        np.maximum(events.start_ns[work] - view.find_ends(calls), 0),
    )
    return Table.of(_COLUMNS, values)


def measure_launch_summary(view: TraceView, options: TraceOptions) -> Table:
    """Sum launches up by the call that made them.

    A launch counts once, whatever number of kernels it launched, and its delay is that of the first
    of them. ``late_count`` are those whose delay is above the limit for late launches,
    ``short_count`` those whose work took less time than the call.

    Args:
        view: The trace.
        options: ``late_launch_ns`` is the limit.

    Returns:
        A row for each kind of call, those with most time on the host first.
    """
    events = view.events
    linked = view.launch_rows >= 0
    work, calls = view.device_rows[linked], view.launch_rows[linked]
    call, group = number_values(calls)
    gpu = sum_groups(events.duration_ns[work], group, len(call))
    begun = _find_least(events.start_ns[work], group, len(call))
    delay = np.maximum(begun - view.find_ends(call), 0)
    cpu = events.duration_ns[call]
    api, group = number_codes(events.name[call], len(view.trace.names))
    size = len(api)
    p50, p99 = find_quantiles(delay, group, size, (0.5, 0.99))
    columns = (
        view.rank_column(size),
        text_column([view.trace.names[one] for one in api.tolist()]),
        np.bincount(group, minlength=size),
        sum_groups(cpu, group, size),
        sum_groups(gpu, group, size),
        p50,
        p99,
        np.bincount(group[delay > options.late_launch_ns], minlength=size),
        np.bincount(group[gpu < cpu], minlength=size),
    )
    table = Table.of(_SUMMARY_COLUMNS, columns)
    return table.take(np.argsort(-table["cpu_ns"], kind="stable"))


def _find_least(values: Whole, group: Whole, size: int) -> Whole:
    """The least value of each group; none is empty."""
    if size == len(values):
        least = np.empty(size, dtype=np.int64)
        least[group] = values
        return least
    return values[order_in_groups(values, group)][np.searchsorted(np.sort(group), np.arange(size))]


def _find_pairs(view: TraceView) -> tuple[Whole, Whole]:
    """Work with a launch, and the launches, by start of the launch and then of the work."""
    events = view.events
    linked = np.flatnonzero(view.launch_rows >= 0)
    work, calls = view.device_rows[linked], view.launch_rows[linked]
    order = np.lexsort((events.start_ns[work], events.start_ns[calls]))
    return work[order], calls[order]


METRIC = Metric("launches", _COLUMNS, measure_launches, is_default=False, is_per_event=True)
SUMMARY_METRIC = Metric("launch_summary", _SUMMARY_COLUMNS, measure_launch_summary, of=of_devices)
