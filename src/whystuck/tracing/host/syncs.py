"""Calls in which the host waited for a device, and how long the device then had nothing to do."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table
from whystuck.evidence.traces.events import Category
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.grouping import group_rows, pick_texts
from whystuck.tracing.device.work import unite_rows, within
from whystuck.tracing.host.spans import find_data_waits, find_syncs, match_names
from whystuck.tracing.host.steps import find_steps
from whystuck.tracing.host.trees import Rows
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

_COLUMNS = ("rank", "call", "op", "place", "count", "sum_ns", "idle_after_ns", "per_step")
# What wraps ops that people call: it is not what waits.
_WRAPPER = re.compile(
    r"autograd::engine::.*|Torch-Compiled Region.*|## Call CompiledFxGraph.*|CompiledFunction.*"
    r"|\w+Backward\d*"
)
_ATEN = re.compile(r"aten::.*")
# Frames of Python itself, of torch and of other packages: what called them is the place.
_LIBRARY = re.compile(
    r"<built-in|<frozen|<string>|nn\.Module: |site-packages/|dist-packages/|lib/python\d"
    r"|(?:^|/)(?:torch|torchvision|torchaudio|triton|numpy)/"
    r"|(?:^|/)(?:contextlib|functools|threading|runpy)\.py\("
)


def measure_host_syncs(view: TraceView, options: TraceOptions) -> Table:
    """Measure the calls in which the host waits for a device.

    ``op`` is the outermost op of ATen around the call, such as ``aten::item``, or the outermost of
    any kind; ``place`` the innermost
    Python frame of the user's code, where stacks were recorded. ``idle_after_ns`` is the time from
    the return to the next work of any device, where devices worked in the call, nothing was
    queued behind it, and the host did not wait for data. Calls outside the steps, such as those of
    the profiler itself, do not count.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row a call, op and place. ``per_step`` is NaN in a trace without steps.
    """
    del options
    events, steps = view.events, find_steps(view)
    rows = _drop_closing(view, find_syncs(view))
    rows = rows[steps.find(events.start_ns[rows]) >= 0]
    op = _find_ops(view, rows)
    place = _find_places(view, rows)
    names = np.append(events.name, np.int32(-1))  # a row -1 has the name -1
    groups = group_rows(events.name[rows], names[op], names[place])
    texts, first = view.trace.names, groups.first
    count = len(steps) if steps.are_known else np.nan
    columns = (
        view.rank_column(len(groups)),
        pick_texts(texts, events.name[rows][first]),
        pick_texts(texts, names[op][first]),
        pick_texts(texts, names[place][first]),
        groups.count,
        groups.sum(events.duration_ns[rows]),
        groups.sum(measure_idle_after(view, rows)),
        groups.count / count,
    )
    return Table.of(_COLUMNS, columns)


def _drop_closing(view: TraceView, rows: Rows) -> Rows:
    """Drop calls after the last op: with one of those the profiler ends."""
    ops = view.ops
    if not len(ops) or len(view.steps[0]):
        return rows
    kept: Rows = rows[view.events.start_ns[rows] <= ops.nesting.end.max()]
    return kept


def _find_ops(view: TraceView, rows: Rows) -> Rows:
    tree, events = view.ops, view.events
    is_wrapper = match_names(view.trace.names, _WRAPPER)
    is_op = events.category[tree.row] == Category.CPU_OP
    name = events.name[tree.row]
    aten = tree.nesting.outermost(is_op & match_names(view.trace.names, _ATEN)[name])
    outer = tree.nesting.outermost(is_op & ~is_wrapper[name])
    outer = np.where(aten >= 0, aten, outer)
    at = tree.find(events, rows)
    return tree.rows_at(np.where(at >= 0, outer[at], -1) if len(tree) else at)


def _find_places(view: TraceView, rows: Rows) -> Rows:
    tree, events = view.frames, view.events
    is_library = match_names(view.trace.names, _LIBRARY, is_whole=False)
    inner = tree.nesting.innermost(~is_library[events.name[tree.row]])
    at = tree.find(events, rows)
    return tree.rows_at(np.where(at >= 0, inner[at], -1) if len(tree) else at)


def measure_idle_after(view: TraceView, rows: Rows) -> NDArray[np.int64]:
    """Measure how long devices had nothing to do after each call because none was queued.

    Args:
        view: The trace.
        rows: Calls that wait for a device.

    Returns:
        Time in ns for each; 0 where the device worked on, where it was idle before the call, or
        where no work follows.
    """
    idle = np.zeros(len(rows), dtype=np.int64)
    busy = unite_rows(view, view.device_rows)
    if not len(busy.start) or not len(rows):
        return idle
    events = view.events
    order = np.argsort(view.end_ns[rows], kind="stable")
    begin, end = events.start_ns[rows][order], view.end_ns[rows][order]
    following = np.searchsorted(busy.start, end, side="right")
    has_next = (following > 0) & (following < len(busy.start))
    following = np.minimum(following, len(busy.start) - 1)
    drained = busy.end[np.maximum(following - 1, 0)]
    is_drained = has_next & (drained <= end) & (drained >= begin)
    is_drained &= _launch_of(view, busy.start)[following] >= end
    until = np.minimum(busy.start[following], np.r_[end[1:], np.iinfo(np.int64).max])
    until = np.maximum(until, end)
    waits = unite_rows(view, find_data_waits(view))
    found = until - end - within(waits, end, until)
    idle[order] = np.where(is_drained, found, 0)
    return idle


def _launch_of(view: TraceView, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return when the work that starts at each of some times was launched; far ahead if unknown."""
    events, launches = view.events, view.launch_rows
    far = np.iinfo(np.int64).max
    launched = np.where(launches >= 0, events.start_ns[launches], far)
    order = np.argsort(events.start_ns[view.device_rows], kind="stable")
    place = np.searchsorted(events.start_ns[view.device_rows][order], starts)
    return launched[order][place]


METRIC = Metric("host_syncs", _COLUMNS, measure_host_syncs, of=find_syncs)
