"""Sequences of kernels that recur, such as those under one operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Column, Table, text_column
from whystuck.evidence.traces.events import Category
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.grouping import group_rows, pick_texts
from whystuck.tracing.host.trees import HostTree
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

Whole = NDArray[np.int64]

_COLUMNS = ("rank", "op", "kernels", "count", "kernel_sum_ns", "op_sum_ns", "kernels_each")
_HOST = (
    Category.USER_ANNOTATION,
    Category.PYTHON,
    Category.CPU_OP,
    Category.RUNTIME,
    Category.DRIVER,
)
SEPARATOR = " | "  # names of copies hold `->`


def number_sequences(values: NDArray[Any], first: Whole) -> Whole:
    """Give equal sequences the same number.

    Args:
        values: The sequences, one after the other.
        first: Where each begins; none is empty.

    Returns:
        A number for each sequence.
    """
    length = np.diff(np.r_[first, len(values)])
    numbers = np.empty(len(first), dtype=np.int64)
    used = 0
    # There are few lengths: as many as sum up to the number of values.
    for size in np.unique(length).tolist():
        mine = np.flatnonzero(length == size)
        table = values[first[mine, None] + np.arange(size)]
        _, number = np.unique(table, axis=0, return_inverse=True)
        numbers[mine] = used + number.ravel()
        used += int(number.max()) + 1
    return numbers


def join_texts(
    names: Sequence[str], values: NDArray[Any], first: Whole, chosen: Whole, by: str
) -> Column:
    """Write out some sequences of names.

    Args:
        names: What the values stand for.
        values: The sequences, one after the other.
        first: Where each begins.
        chosen: Which to write.
        by: What stands between names.

    Returns:
        A text for each of the chosen.
    """
    until = np.r_[first, len(values)]
    return text_column(
        [
            by.join(names[value] for value in values[until[one] : until[one + 1]].tolist())
            for one in chosen.tolist()
        ]
    )


def measure_sequences(view: TraceView, options: TraceOptions) -> Table:
    """Count the sequences of kernels under an operator.

    Of the events of the host whose names hold ``options.sequence_operator``, those count that lie
    in no other such, and launched at least ``options.sequence_length`` kernels, copies and fills.
    Their work is taken in the order in which it began.

    Args:
        view: The trace.
        options: The operator, and the least number of kernels.

    Returns:
        A row an operator and sequence, the most frequent first; none when no operator is named.
    """
    events, wanted = view.events, options.sequence_operator
    is_named = np.fromiter(
        (bool(wanted) and wanted in name for name in view.trace.names),
        np.bool_,
        len(view.trace.names),
    )
    none = np.empty(0, dtype=np.int64)
    if not is_named.any():
        return _make_table(view, none, none, none)
    tree = HostTree.of(events, _HOST)
    is_meant = is_named[events.name[tree.row]]
    if view.cut_ns is not None:
        is_meant &= events.start_ns[tree.row] < view.cut_ns
    if not is_meant.any():
        return _make_table(view, none, none, none)
    around = tree.nesting.outermost(is_meant)
    at = tree.find_launching(events, view.device_rows, view.launch_rows)
    holder = np.where(at >= 0, around[at], -1)
    kept = np.flatnonzero(holder >= 0)
    kept = kept[np.lexsort((events.start_ns[view.device_rows[kept]], holder[kept]))]
    counts = np.bincount(holder[kept], minlength=len(tree))
    kept = kept[counts[holder[kept]] >= max(options.sequence_length, 1)]
    holder = holder[kept]
    first = np.flatnonzero(np.r_[True, holder[1:] != holder[:-1]]) if len(holder) else holder
    return _make_table(view, view.device_rows[kept], first, tree.row[holder[first]])


def _make_table(view: TraceView, rows: Whole, first: Whole, op: Whole) -> Table:
    events = view.events
    groups = group_rows(events.name[op], number_sequences(events.name[rows], first))
    sums = np.add.reduceat(events.duration_ns[rows], first) if len(first) else first
    columns = (
        view.rank_column(len(groups)),
        pick_texts(view.trace.names, events.name[op][groups.first]),
        join_texts(view.trace.names, events.name[rows], first, groups.first, SEPARATOR),
        groups.count,
        groups.sum(sums),
        groups.sum(events.duration_ns[op]),
        np.diff(np.r_[first, len(rows)])[groups.first],
    )
    table = Table.of(_COLUMNS, columns)
    return table.take(np.argsort(-table["count"], kind="stable"))


METRIC = Metric("kernel_sequences", _COLUMNS, measure_sequences, is_default=False)
