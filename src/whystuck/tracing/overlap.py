"""How much of communication runs while the device computes."""

from __future__ import annotations

import numpy as np

from whystuck.evidence.table import Table, whole_column
from whystuck.tracing.classes import KernelClass
from whystuck.tracing.intervals import overlap, unite
from whystuck.tracing.metric import Metric
from whystuck.tracing.options import TraceOptions
from whystuck.tracing.view import TraceView

_COLUMNS = ("rank", "device", "comm_ns", "overlap_ns", "overlap_pct")


def measure_overlap(view: TraceView, options: TraceOptions) -> Table:
    """Measure how much of communication is hidden behind compute.

    ``comm_ns`` is the time in which any communication ran, ``overlap_ns`` the part of it in which
    something computed too, ``overlap_pct`` their ratio in percent: NaN where nothing communicated.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row a device.
    """
    del options
    start, end = view.events.start_ns[view.device_rows], view.end_ns[view.device_rows]
    devices = np.unique(view.device).tolist()
    comm_ns, overlap_ns = [], []
    for device in devices:
        mine = view.device == device
        comm, compute = (
            unite(start[chosen], end[chosen])
            for chosen in (
                mine & (view.device_class == kind)
                for kind in (KernelClass.COMM, KernelClass.COMPUTE)
            )
        )
        comm_ns.append(comm.length)
        overlap_ns.append(overlap(comm, compute))
    total, hidden = whole_column(comm_ns), whole_column(overlap_ns)
    share = np.divide(100.0 * hidden, total, out=np.full(len(total), np.nan), where=total > 0)
    values = (whole_column([view.trace.rank] * len(devices)), devices, total, hidden, share)
    return Table({name: np.asarray(one) for name, one in zip(_COLUMNS, values, strict=True)})


METRIC = Metric("overlap", _COLUMNS, measure_overlap)
