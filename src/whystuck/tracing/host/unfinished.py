"""What a device ran last in a trace, and which launches after it have no work: what hangs."""

from __future__ import annotations

from collections.abc import Sized

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.events import Category
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

_COLUMNS = ("rank", "name", "end_ns", "open_count", "open_api", "open_op", "open_ns")


def measure_unfinished(view: TraceView, options: TraceOptions) -> Table:
    """Tell what the devices of a rank ran last, and the first launch after it without work.

    A trace holds work that ended. So what does not end is told by its launch alone: ``open_count``
    launches came after the last one that has work, ``open_api`` is the call of the first of them
    and ``open_op`` the innermost op of the host around it. Times are on the host's clock.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        One row, or none where there is neither work nor a launch.
    """
    del options
    events, names = view.events, view.trace.names
    work, launches = view.all_device_rows, _find_launches(view)
    linked = view.all_launch_rows
    newest = int(events.start_ns[linked[linked >= 0]].max(initial=-1))
    left = launches[events.start_ns[launches] > newest]
    last, end_ns = "", 0
    if len(work):
        row = int(work[view.find_ends(work).argmax()])
        last = names[int(events.name[row])]
        end_ns = view.trace.base_ns + int(view.find_ends(work).max())
    first = int(left[events.start_ns[left].argmin()]) if len(left) else -1
    table = Table(
        {
            "rank": np.array([view.trace.rank], dtype=np.int64),
            "name": text_column([last]),
            "end_ns": np.array([end_ns], dtype=np.int64),
            "open_count": np.array([len(left)], dtype=np.int64),
            "open_api": text_column([names[int(events.name[first])] if first >= 0 else ""]),
            "open_op": text_column([_find_op(view, first)]),
            "open_ns": np.array(
                [view.trace.base_ns + int(events.start_ns[first]) if first >= 0 else 0],
                dtype=np.int64,
            ),
        }
    )
    return table if len(work) or len(launches) else table.take(slice(0))


def _find_launches(view: TraceView) -> NDArray[np.int64]:
    """Find the calls that launch kernels; graphs, of which one launch has many, are among them."""
    calls = view.all_call_rows
    is_launch = np.array(["Launch" in name for name in view.trace.names], dtype=np.bool_)
    return calls[is_launch[view.events.name[calls]]] if len(calls) else calls


def _find_op(view: TraceView, call: int) -> str:
    """Return the innermost op of the host around a call; empty where there is none."""
    if call < 0:
        return ""
    events = view.events
    start_ns = int(events.start_ns[call])
    is_around = (
        (events.category == Category.CPU_OP)
        & (events.tid == events.tid[call])
        & (events.pid == events.pid[call])
        & (events.start_ns <= start_ns)
        & (events.start_ns + events.duration_ns >= start_ns)
    )
    rows = np.flatnonzero(is_around)
    if not len(rows):
        return ""
    return view.trace.names[int(events.name[rows[events.start_ns[rows].argmax()]])]


def _list_calls(view: TraceView) -> Sized:
    return view.all_call_rows


METRIC = Metric("unfinished", _COLUMNS, measure_unfinished, of=_list_calls)
