"""Time in which the host got its next batch."""

from __future__ import annotations

import numpy as np

from whystuck.evidence.table import Table
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.grouping import group_rows, pick_texts
from whystuck.tracing.device.work import find_work, within
from whystuck.tracing.host.spans import find_data_waits
from whystuck.tracing.host.steps import find_steps
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

_COLUMNS = ("rank", "step", "name", "count", "sum_ns", "exposed_ns")


def measure_data_waits(view: TraceView, options: TraceOptions) -> Table:
    """Measure how long each step waited for data.

    A wait belongs to the step in which it began. It is exposed where no device works meanwhile; in
    traces without any device, where no op runs on another thread.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row a step and name of the wait. ``exposed_ns`` is -1 when the work of devices is unknown.
    """
    del options
    events, rows, work = view.events, find_data_waits(view), find_work(view)
    start, end = events.start_ns[rows], view.end_ns[rows]
    step = find_steps(view).number_at(start)
    groups = group_rows(step, events.name[rows])
    exposed = groups.sum(end - start - within(work.busy, start, end))
    columns = (
        view.rank_column(len(groups)),
        step[groups.first],
        pick_texts(view.trace.names, events.name[rows][groups.first]),
        groups.count,
        groups.sum(end - start),
        exposed if work.is_known else np.full(len(groups), -1),
    )
    return Table.of(_COLUMNS, columns)


METRIC = Metric("data_waits", _COLUMNS, measure_data_waits, of=find_data_waits)
