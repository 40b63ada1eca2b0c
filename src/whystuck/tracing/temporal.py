"""What each device did with its time: compute, communication, memory, nothing."""

from __future__ import annotations

import numpy as np

from whystuck.evidence.table import Table, whole_column
from whystuck.tracing.classes import KernelClass
from whystuck.tracing.intervals import overlap, unite
from whystuck.tracing.metric import Metric
from whystuck.tracing.options import TraceOptions
from whystuck.tracing.view import TraceView

_COLUMNS = (
    "rank",
    "device",
    "wall_ns",
    "busy_ns",
    "idle_ns",
    "compute_ns",
    "comm_ns",
    "exposed_comm_ns",
    "memory_ns",
    "exposed_memory_ns",
)


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
    events, rows = view.events, view.device_rows
    device = view.device
    made = []
    for one in np.unique(device).tolist():
        mine = rows[device == one]
        classes = view.device_class[device == one]
        start, end = events.start_ns[mine], view.end_ns[mine]
        busy = unite(start, end)
        parts = {kind: unite(start[classes == kind], end[classes == kind]) for kind in KernelClass}
        compute, comm = parts[KernelClass.COMPUTE], parts[KernelClass.COMM]
        is_active = classes != KernelClass.MEMORY
        active = unite(start[is_active], end[is_active])
        wall = int(busy.end[-1] - busy.start[0])
        made.append(
            (
                view.trace.rank,
                one,
                wall,
                busy.length,
                wall - busy.length,
                compute.length,
                comm.length,
                comm.length - overlap(compute, comm),
                parts[KernelClass.MEMORY].length,
                busy.length - active.length,
            )
        )
    columns = zip(*made, strict=True) if made else ((),) * len(_COLUMNS)
    return Table(
        {name: whole_column(values) for name, values in zip(_COLUMNS, columns, strict=True)}
    )


METRIC = Metric("temporal_breakdown", _COLUMNS, measure_temporal)
