"""Hardware counters of kernels, with the ops that launched them."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.events import Category
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.grouping import pick_texts
from whystuck.tracing.host.spans import match_names
from whystuck.tracing.host.trees import Rows
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

_COLUMNS = (
    "rank",
    "order",
    "kernel",
    "start_ns",
    "duration_ns",
    "counter",
    "value",
    "op",
    "outer_op",
    "op_stack",
)
_LAUNCH = re.compile(r"(?:cuda|hip)LaunchKernel.*|cuLaunchKernel.*|(?:cuda|hip)LaunchCooperative.*")
_SEPARATOR = " | "


def match_launches(
    range_start: NDArray[np.int64], launch_start: NDArray[np.int64], launch_end: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Match ranges of counters with launches of kernels.

    Both come in order of time. Where there are as many of one as of the other, the n-th belongs to
    the n-th. Else kernels were left out on one side: a range then belongs to the launch in which it
    began, or behind which it is the first range before the next launch; no other is certain.

    Args:
        range_start: When each range began, ascending, in ns.
        launch_start: When each launch began, ascending, in ns.
        launch_end: When each launch ended, in ns.

    Returns:
        The place of the launch of each range, or -1.
    """
    if len(range_start) == len(launch_start):
        return np.arange(len(range_start))
    place = np.searchsorted(launch_start, range_start, side="right") - 1
    is_first = np.r_[True, place[1:] != place[:-1]][: len(place)]
    is_only = is_first & np.r_[place[1:] != place[:-1], True][: len(place)]
    inside = (place >= 0) & (range_start <= launch_end[place]) if len(launch_end) else place >= 0
    return np.where((place >= 0) & (is_only | (inside & is_first)), place, -1)


def measure_counters(view: TraceView, options: TraceOptions) -> Table:
    """List hardware counters with the ops that launched the kernels.

    Args:
        view: The trace; it must have been recorded with metrics of CUPTI.
        options: Not used.

    Returns:
        A row a kernel and counter, in order of time; ``order`` numbers the kernels. ``op`` is the
        deepest op around the launch, ``op_stack`` all of them from the outermost. They are empty
        where it is not certain which launch it was.
    """
    del options
    events = view.events
    rows = _sort(view, np.flatnonzero(events.category == Category.COUNTER))
    is_launch = match_names(view.trace.names, _LAUNCH)[events.name]
    is_launch &= np.isin(events.category, (Category.RUNTIME, Category.DRIVER))
    launches = _sort(view, np.flatnonzero(is_launch))
    at = match_launches(events.start_ns[rows], events.start_ns[launches], view.end_ns[launches])
    ops = view.ops.find(events, np.where(at >= 0, launches[at], -1) if len(launches) else at)
    stacks = [_stack(view, place) for place in ops.tolist()]
    read = [_parse_counters(text) for text in _texts(view, rows)]
    order = np.repeat(np.arange(len(rows)), [len(one) for one in read])
    flat = [pair for one in read for pair in one]
    columns = (
        view.rank_column(len(order)),
        order,
        pick_texts(view.trace.names, events.name[rows[order]]),
        events.start_ns[rows[order]],
        events.duration_ns[rows[order]],
        text_column([name for name, _ in flat]),
        np.array([value for _, value in flat], dtype=np.float64),
        *(
            text_column([part(stacks[one]) for one in order.tolist()])
            for part in (
                lambda stack: stack[-1] if stack else "",
                lambda stack: stack[0] if stack else "",
                _SEPARATOR.join,
            )
        ),
    )
    return Table.of(_COLUMNS, columns)


def _sort(view: TraceView, rows: Rows) -> Rows:
    start = view.events.start_ns
    if view.cut_ns is not None:
        rows = rows[start[rows] < view.cut_ns]
    return rows[np.argsort(start[rows], kind="stable")]


def _stack(view: TraceView, place: int) -> list[str]:
    """Return the names of the ops from the outermost to that at a place."""
    tree, events = view.ops, view.events
    names = []
    while place >= 0:
        row = int(tree.row[place])
        if events.category[row] == Category.CPU_OP:
            names.append(view.trace.names[int(events.name[row])])
        place = int(tree.nesting.parent[place])
    return names[::-1]


def _texts(view: TraceView, rows: Rows) -> list[str]:
    index = view.trace.get("counters:text").at(rows).tolist()
    return [view.trace.texts[int(one)] if one >= 0 else "{}" for one in index]


def _parse_counters(text: str) -> list[tuple[str, float]]:
    """Return the counters of a kernel: what of its arguments is a number."""
    try:
        found: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return []
    if not isinstance(found, dict):
        return []
    return [
        (name, float(value))
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


METRIC = Metric(
    "hardware_counters", _COLUMNS, measure_counters, is_default=False, is_per_event=True
)
