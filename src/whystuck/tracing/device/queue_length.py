"""How much launched work waited on each stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.segments import (
    Real,
    Whole,
    find_quantiles,
    order_in_groups,
    sum_groups,
)
from whystuck.tracing.metric import Metric, of_devices
from whystuck.tracing.view import TraceView

_COLUMNS = (
    "rank",
    "device",
    "stream",
    "points",
    "mean",
    "std",
    "min",
    "p25",
    "p50",
    "p75",
    "max",
    "time_mean",
    "span_ns",
    "full_ns",
)
_SERIES_COLUMNS = ("rank", "device", "stream", "ts_ns", "length")
_QUARTERS = 4


@dataclass(frozen=True)
class _Series:
    """Changes of the length of queues, by queue and time.

    ``lasted_ns`` is how long a length stayed, 0 for the last of a queue.
    """

    place: Whole
    time: Whole
    length: Whole
    lasted_ns: Whole


def measure_queue_length(view: TraceView, options: TraceOptions) -> Table:
    """Sum up how much launched work waited on each stream.

    The length of a queue goes up by one when work is launched and down by one when it starts, so
    that it is what a call of the host would have to wait behind. ``mean``, ``std`` and the
    quantiles are over the ``points`` at which it changes, as in HTA (``get_queue_length_summary``);
    ``time_mean`` weights each length with the time for which it lasted, over the ``span_ns``
    between the first launch and the last start. ``full_ns`` is the time in which a queue was full,
    so that launches block. Where the clock of a device is behind, lengths can be below 0.

    Args:
        view: The trace.
        options: ``queue_limit`` is the length from which a queue is full.

    Returns:
        A row for each stream on which work of known launches ran.
    """
    series, queues = _find_series(view), view.queues
    place, length = series.place, series.length
    points = np.bincount(place, minlength=len(queues))
    some = np.flatnonzero(points)
    size = len(queues)
    mean = sum_groups(length, place, size) / np.maximum(points, 1)
    squares = np.bincount(place, weights=(length - mean[place]) ** 2, minlength=size)
    # Quantiles lie on quarters, so that four times the lengths give them as whole numbers.
    low, p25, p50, p75, high = (
        part / _QUARTERS
        for part in find_quantiles(_QUARTERS * length, place, size, (0, 0.25, 0.5, 0.75, 1))
    )
    span = sum_groups(series.lasted_ns, place, size)
    is_full = length >= options.queue_limit
    columns = (
        view.rank_column(size),
        queues.device,
        queues.stream,
        points,
        mean,
        np.sqrt(squares / np.maximum(points - 1, 1)),
        low.astype(np.int64),
        p25,
        p50,
        p75,
        high.astype(np.int64),
        _divide(sum_groups(length * series.lasted_ns, place, size), span),
        span,
        sum_groups(series.lasted_ns[is_full], place[is_full], size),
    )
    return Table.of(_COLUMNS, columns).take(some)


def measure_queue_series(view: TraceView, options: TraceOptions) -> Table:
    """List how the number of launched pieces of work that wait on each stream changed.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row for each change: the length from ``ts_ns`` on.
    """
    del options
    series, queues = _find_series(view), view.queues
    columns = (
        view.rank_column(len(series.time)),
        queues.device[series.place],
        queues.stream[series.place],
        series.time,
        series.length,
    )
    return Table.of(_SERIES_COLUMNS, columns)


def _find_series(view: TraceView) -> _Series:
    starts = view.events.start_ns
    linked = np.flatnonzero(view.launch_rows >= 0)
    work, calls = view.device_rows[linked], view.launch_rows[linked]
    time = np.r_[starts[calls], starts[work]]
    change = np.repeat(np.array([1, -1], dtype=np.int64), len(work))
    # At one and the same time launches stay first: work cannot start before it is launched.
    place = np.tile(view.queues.place[linked], 2)
    order = order_in_groups(time, place)
    time, place = time[order], place[order]
    # Every queue ends empty, so that one running sum does for all.
    length = np.cumsum(change[order])
    lasted = np.zeros(len(time), dtype=np.int64)
    lasted[:-1] = np.where(place[1:] == place[:-1], np.diff(time), 0)
    return _Series(place, time, length, lasted)


def _divide(total: Whole, parts: NDArray[np.int64]) -> Real:
    share: Real = np.divide(total, parts, out=np.zeros(len(total)), where=parts > 0)
    return share


METRIC = Metric("queue_length", _COLUMNS, measure_queue_length, of=of_devices)
SERIES_METRIC = Metric(
    "queue_series", _SERIES_COLUMNS, measure_queue_series, is_default=False, is_per_event=True
)
