"""What devices and streams did with their time: compute, communication, memory, nothing."""

from __future__ import annotations

import numpy as np

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.intervals import Times
from whystuck.tracing.classes import CLASS_NAMES, KernelClass
from whystuck.tracing.device.busy import COMM, COMPUTE, MEMORY, Busy, bit
from whystuck.tracing.metric import Metric, of_devices
from whystuck.tracing.view import TraceView

_TIMES = (
    "wall_ns",
    "busy_ns",
    "idle_ns",
    "compute_ns",
    "comm_ns",
    "exposed_comm_ns",
    "memory_ns",
    "exposed_memory_ns",
)
_COLUMNS = ("rank", "device", *_TIMES)
_STREAM_COLUMNS = ("rank", "device", "stream", "count", *_TIMES)
_CLASS_COLUMNS = ("rank", "device", "classes", "sum_ns", "share")


def measure_temporal(view: TraceView, options: TraceOptions) -> Table:
    """Measure how each device spent its time.

    ``wall_ns`` is from the first start to the last end of work in the window, ``busy_ns`` the time
    in which any work ran. Communication is exposed where nothing computes, memory work where
    nothing computes or communicates, so that busy = compute + exposed comm + exposed memory.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row a device.
    """
    del options
    busy = view.device_busy
    values = (
        view.rank_column(len(busy)),
        view.devices,
        *_tell_times(busy),
    )
    return Table.of(_COLUMNS, values)


def measure_streams(view: TraceView, options: TraceOptions) -> Table:
    """Measure how each stream spent its time.

    Times are those of ``temporal_breakdown``, within one stream; ``count`` is the number of pieces
    of work.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row a stream.
    """
    del options
    busy, queues = view.stream_busy, view.queues
    rank = view.rank_column(len(busy))
    values = (rank, queues.device, queues.stream, busy.count, *_tell_times(busy))
    return Table.of(_STREAM_COLUMNS, values)


def measure_classes(view: TraceView, options: TraceOptions) -> Table:
    """Measure for how long which classes of work ran at the same time.

    ``classes`` are those that ran, joined by ``+``, and none but those; ``share`` is their part of
    the busy time of the device.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row for each device and each set of classes that ran at all.
    """
    del options
    busy, size = view.device_busy, len(view.devices)
    sets = range(1, 1 << len(KernelClass))
    names = ["+".join(CLASS_NAMES[kind] for kind in KernelClass if one & bit(kind)) for one in sets]
    time = np.array([busy.only(one) for one in sets], dtype=np.int64).reshape(len(names), size).T
    total = np.maximum(busy.busy_ns, 1)[:, np.newaxis]
    columns = (
        view.rank_column(time.size),
        np.repeat(view.devices, len(names)),
        np.tile(text_column(names), size),
        time.ravel(),
        (time / total).ravel(),
    )
    table = Table.of(_CLASS_COLUMNS, columns)
    return table.take(table["sum_ns"] > 0)


def _tell_times(busy: Busy) -> tuple[Times, ...]:
    """The columns from ``wall_ns`` on."""
    active = busy.any_of[COMPUTE | COMM]
    return (
        busy.wall_ns,
        busy.busy_ns,
        busy.wall_ns - busy.busy_ns,
        busy.any_of[COMPUTE],
        busy.any_of[COMM],
        active - busy.any_of[COMPUTE],
        busy.any_of[MEMORY],
        busy.busy_ns - active,
    )


METRIC = Metric("temporal_breakdown", _COLUMNS, measure_temporal, of=of_devices)
STREAM_METRIC = Metric("stream_breakdown", _STREAM_COLUMNS, measure_streams, of=of_devices)
CLASS_METRIC = Metric("kernel_classes", _CLASS_COLUMNS, measure_classes, of=of_devices)
