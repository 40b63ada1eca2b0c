"""How much of communication runs while the device computes."""

from __future__ import annotations

import numpy as np

from whystuck.evidence.table import Table
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.device.busy import COMM
from whystuck.tracing.metric import Metric, of_devices
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
    busy = view.device_busy
    total, hidden = busy.any_of[COMM], busy.overlap_ns
    values = (
        view.rank_column(len(busy)),
        view.devices,
        total,
        hidden,
        np.divide(100.0 * hidden, total, out=np.full(len(total), np.nan), where=total > 0),
    )
    return Table.of(_COLUMNS, values)


METRIC = Metric("overlap", _COLUMNS, measure_overlap, of=of_devices)
