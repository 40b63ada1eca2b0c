"""Which ops launched which kernels, and how long the kernels waited."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table
from whystuck.evidence.traces.events import Category
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.grouping import group_rows, pick_texts
from whystuck.tracing.classes import CLASS_NAMES
from whystuck.tracing.device.sequences import SEPARATOR, join_texts, number_sequences
from whystuck.tracing.host.trees import Rows
from whystuck.tracing.metric import Metric, of_devices
from whystuck.tracing.view import TraceView

_LIBRARY_OP = "aten::"


@dataclass(frozen=True)
class LaunchingOps:
    """The ops around the launch of each row of ``TraceView.device_rows``.

    ``inner`` is the row in the trace of the deepest op of ATen, or of the deepest op where there
    is none of it; ``outer`` that of the outermost op. Both are -1 where no op is known.
    """

    inner: Rows
    outer: Rows


def find_launching_ops(view: TraceView) -> LaunchingOps:
    """Find the ops from which the work of devices in the window was launched."""
    tree, events = view.ops, view.events
    names = view.trace.names
    is_aten = np.fromiter((name.startswith(_LIBRARY_OP) for name in names), np.bool_, len(names))
    is_op = events.category[tree.row] == Category.CPU_OP
    aten = tree.nesting.innermost(is_op & is_aten[events.name[tree.row]])
    inner, outer = tree.nesting.innermost(is_op), tree.nesting.outermost(is_op)
    at = view.launching_ops
    if not len(tree):
        return LaunchingOps(at, at)
    inner = np.where(aten >= 0, aten, inner)
    return LaunchingOps(
        tree.rows_at(np.where(at >= 0, inner[at], -1)),
        tree.rows_at(np.where(at >= 0, outer[at], -1)),
    )


def measure_delays(view: TraceView) -> NDArray[np.int64]:
    """Return the time from the end of the launch to the start of each of ``device_rows``, in ns.

    It is 0 where the work began before the call returned, and -1 where the launch is unknown.
    """
    launch = view.launch_rows
    delay = view.events.start_ns[view.device_rows] - view.find_ends(launch)
    return np.where(launch >= 0, np.maximum(delay, 0), -1)


_COLUMNS = (
    "rank",
    "op",
    "kernel",
    "count",
    "sum_ns",
    "delay_mean_ns",
    "outer_op",
    "class",
    "mean_ns",
    "delay_max_ns",
)


def measure_op_kernels(view: TraceView, options: TraceOptions) -> Table:
    """Measure the kernels that ops launch, each op with the outermost op around it.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row an op, outermost op and kernel, those that took longest first. ``op`` is the deepest
        of ATen, or the deepest of any kind; it is empty where no op is known. The delay is from
        the end of the launch; NaN and -1 when no launch is known.
    """
    del options
    events, rows, names = view.events, view.device_rows, view.trace.names
    ops = find_launching_ops(view)
    named = np.append(events.name, np.int32(-1))
    groups = group_rows(named[ops.inner], named[ops.outer], events.name[rows])
    duration, delay = events.duration_ns[rows], measure_delays(view)
    known = groups.sum(delay >= 0)
    waited = groups.sum(np.maximum(delay, 0))
    first = groups.first
    classes = np.array([CLASS_NAMES[kind] for kind in sorted(CLASS_NAMES)], dtype=object)
    columns = (
        view.rank_column(len(groups)),
        pick_texts(names, named[ops.inner][first]),
        pick_texts(names, events.name[rows][first]),
        groups.count,
        groups.sum(duration),
        np.where(known > 0, waited / np.maximum(known, 1), np.nan),
        pick_texts(names, named[ops.outer][first]),
        classes[view.device_class[first]],
        groups.mean(duration),
        groups.max(delay),
    )
    table = Table.of(_COLUMNS, columns)
    return table.take(np.argsort(-table["sum_ns"], kind="stable"))


METRIC = Metric("op_kernels", _COLUMNS, measure_op_kernels, of=of_devices)

_LAUNCH_COLUMNS = (
    "rank",
    "op",
    "kernels",
    "count",
    "op_delay_mean_ns",
    "runtime_delay_mean_ns",
    "kernel_sum_ns",
)


def measure_op_launches(view: TraceView, options: TraceOptions) -> Table:
    """Measure how long ops of ATen take to get their first kernel going.

    The kernels of one call of an op are those launched in it and in no op of ATen inside it, in
    the order of their launches. ``op_delay`` is from the start of the op to its first launch,
    ``runtime_delay`` from the start of that launch to the start of its kernel.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row an op and sequence of kernels, the most frequent first.
    """
    del options
    events, launches = view.events, view.launch_rows
    ops = find_launching_ops(view).inner
    kept = np.flatnonzero((ops >= 0) & (launches >= 0))
    order = np.lexsort((events.start_ns[launches[kept]], ops[kept]))
    kept = kept[order]
    rows, op, launch = view.device_rows[kept], ops[kept], launches[kept]
    first = np.flatnonzero(np.r_[True, op[1:] != op[:-1]]) if len(op) else op
    sequences = number_sequences(events.name[rows], first)
    groups = group_rows(events.name[op[first]], sequences)
    begun = events.start_ns[launch[first]]
    sums = np.add.reduceat(events.duration_ns[rows], first) if len(op) else op
    texts = join_texts(view.trace.names, events.name[rows], first, groups.first, SEPARATOR)
    columns = (
        view.rank_column(len(groups)),
        pick_texts(view.trace.names, events.name[op[first]][groups.first]),
        texts,
        groups.count,
        groups.mean(begun - events.start_ns[op[first]]),
        # The clock of the device may be a little behind.
        groups.mean(np.maximum(events.start_ns[rows[first]] - begun, 0)),
        groups.sum(sums),
    )
    table = Table.of(_LAUNCH_COLUMNS, columns)
    return table.take(np.argsort(-table["count"], kind="stable"))


LAUNCHES = Metric("op_launches", _LAUNCH_COLUMNS, measure_op_launches, is_default=False)
