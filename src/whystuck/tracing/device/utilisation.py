"""How well devices were used: the busy share, and estimates from the shapes of kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table
from whystuck.evidence.traces.events import Category, Detail
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.intervals import Times, cover, unite
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

_COLUMNS = (
    "rank",
    "device",
    "step",
    "wall_ns",
    "busy_ns",
    "busy_share",
    "sm_efficiency",
    "occupancy",
)
Real = NDArray[np.float64]
_WINDOW = -1


@dataclass(frozen=True)
class _Windows:
    number: Times
    start: Times
    end: Times


def measure_utilisation(view: TraceView, options: TraceOptions) -> Table:
    """Measure how well each device was used, in the whole window and in each step.

    The row of step -1 is for the time from the first start to the last end of work of the device
    in the window; those of steps are for the step on the clock of the host, whatever launched the
    work. ``busy_share`` is the share of that time in which any work ran.

    ``sm_efficiency`` is the mean over that time of the least of 1 and the blocks per SM of all
    kernels that run, so that idle time counts as 0. ``occupancy`` is the mean of the estimated
    occupancy that the tracer writes for a kernel, weighted by durations. Both are as the
    TensorBoard plugin of the PyTorch profiler defines them ("Est. SM Efficiency", "Est. Achieved
    Occupancy"), shares from 0 to 1 here, and NaN where kernels do not tell.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row for each device and step, and one for each device.
    """
    del options
    numbers, starts, ends = view.steps
    cut = view.cut_ns
    kept = np.ones(len(starts), dtype=np.bool_) if cut is None else starts < cut
    busy = view.device_busy
    parts = []
    order = np.argsort(view.device_place, kind="stable")
    edges = np.r_[0, np.cumsum(busy.count)]
    for place, device in enumerate(view.devices.tolist()):
        windows = _Windows(
            np.r_[_WINDOW, numbers[kept]],
            np.r_[busy.first[place], starts[kept]],
            np.r_[busy.last[place], ends[kept]],
        )
        mine = view.device_rows[order[edges[place] : edges[place + 1]]]
        parts.append((np.full(len(windows.number), device), *_measure(view, mine, windows)))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] or [starts[:0]] * 7
    rank = view.rank_column(len(columns[0]))
    return Table.of(_COLUMNS, (rank, *columns))


def _measure(view: TraceView, rows: Times, windows: _Windows) -> tuple[NDArray[np.generic], ...]:
    """The columns from ``step`` on, of the work of one device."""
    wall = windows.end - windows.start
    union = unite(view.events.start_ns[rows], view.find_ends(rows))
    busy = cover(union, windows.end) - cover(union, windows.start)
    kernels = rows[view.events.category[rows] == Category.KERNEL]
    return (
        windows.number,
        wall,
        busy,
        _divide(busy, wall),
        _divide(_integrate_blocks(view, kernels, windows), wall),
        _average_occupancy(view, kernels, windows),
    )


def _integrate_blocks(view: TraceView, rows: Times, windows: _Windows) -> Real:
    """The least of 1 and the blocks per SM, over each window, in ns; NaN when not told."""
    blocks = view.trace.get("blocks_per_sm").at(rows).astype(np.float64)
    told = np.isfinite(blocks) & (blocks >= 0)
    rows, blocks = rows[told], blocks[told]
    if not len(rows):
        return np.full(len(windows.start), np.nan)
    time = np.r_[view.events.start_ns[rows], view.find_ends(rows)]
    order = np.argsort(time, kind="stable")
    time = time[order]
    level = np.clip(np.cumsum(np.r_[blocks, -blocks][order]), 0.0, 1.0)
    # The integral up to each edge; between edges it grows by the level of the edge before.
    total = np.r_[0.0, np.cumsum(level[:-1] * np.diff(time))]

    def up_to(at: Times) -> Real:
        value: Real = np.interp(at, time, total)
        return value

    return up_to(windows.end) - up_to(windows.start)


def _average_occupancy(view: TraceView, rows: Times, windows: _Windows) -> Real:
    """The mean occupancy of the kernels that begin in each window; NaN when not told."""
    percent = view.trace.get("occupancy").at(rows).astype(np.float64)
    told = np.isfinite(percent) & (percent >= 0)
    rows, percent = rows[told], percent[told]
    start = view.events.start_ns[rows]
    order = np.argsort(start, kind="stable")
    start, duration = start[order], view.events.duration_ns[rows][order]
    weighted = np.r_[0.0, np.cumsum(percent[order] / 100.0 * duration)]
    weight = np.r_[0, np.cumsum(duration)]
    low = np.searchsorted(start, windows.start)
    high = np.searchsorted(start, windows.end)
    return _divide(weighted[high] - weighted[low], weight[high] - weight[low])


def _divide(total: NDArray[np.generic], parts: Times) -> Real:
    share: Real = np.divide(total, parts, out=np.full(len(parts), np.nan), where=parts > 0)
    return share


METRIC = Metric(
    "gpu_utilisation",
    _COLUMNS,
    measure_utilisation,
    is_default=False,
    detail=Detail.LEAN | Detail.KERNELS,
)
