"""Memory over time and its peaks, from the allocations that the profiler marked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Column, Table, text_column
from whystuck.evidence.traces.events import Category
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.grouping import group_rows, pick_texts
from whystuck.tracing.host.steps import NO_STEP, find_steps
from whystuck.tracing.host.trees import Rows
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

# Numbers of `c10::DeviceType` (c10/core/DeviceType.h).
_DEVICE_TYPES = {
    0: "cpu",
    1: "cuda",
    6: "hip",
    9: "xla",
    12: "xpu",
    13: "mps",
    15: "hpu",
    19: "mtia",
    20: "privateuse1",
}
_COLUMNS = (
    "rank",
    "device_type",
    "device",
    "allocations",
    "frees",
    "allocated_total_bytes",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "peak_at_ns",
    "peak_step",
    "peak_op",
    "first_allocated_bytes",
    "last_allocated_bytes",
)
_TIMELINE_COLUMNS = (
    "rank",
    "device_type",
    "device",
    "time_ns",
    "bytes",
    "allocated_bytes",
    "reserved_bytes",
)


@dataclass(frozen=True)
class _Changes:
    """Marks of memory by device and time: rows of the trace and what they tell, -1 if unknown."""

    row: Rows
    kind: NDArray[np.int64]
    device: NDArray[np.int64]
    size: NDArray[np.int64]
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]

    @property
    def type(self) -> Column:
        """The type of the device of each, in words."""
        return text_column([_DEVICE_TYPES.get(one, str(one)) for one in self.kind.tolist()])


def _find_rows(view: TraceView) -> Rows:
    return np.flatnonzero(view.events.category == Category.MEMORY)


def _find_changes(view: TraceView) -> _Changes:
    events, trace = view.events, view.trace
    rows = _find_rows(view)
    if view.cut_ns is not None:
        rows = rows[events.start_ns[rows] < view.cut_ns]
    kind = trace.get("memory_device_type").at(rows).astype(np.int64)
    device = trace.get("memory_device").at(rows).astype(np.int64)
    order = np.lexsort((events.start_ns[rows], device, kind))
    rows = rows[order]
    return _Changes(
        rows,
        kind[order],
        device[order],
        trace.get("memory_bytes").at(rows, 0).astype(np.int64),
        trace.get("memory_allocated_bytes").at(rows).astype(np.int64),
        trace.get("memory_reserved_bytes").at(rows).astype(np.int64),
    )


def measure_memory(view: TraceView, options: TraceOptions) -> Table:
    """Measure the peaks of memory of each device.

    Args:
        view: The trace; it must have recorded memory.
        options: Not used.

    Returns:
        A row a device, the host's memory among them. ``peak_op`` is the outermost op in which the
        peak was reached, empty outside of ops; ``peak_step`` is -1 outside of steps.
    """
    del options
    changes, events = _find_changes(view), view.events
    groups = group_rows(changes.kind, changes.device)
    bounds = np.append(groups.first, len(changes.row))
    peaks = np.array(
        [
            start + int(np.argmax(changes.allocated[start:end]))
            for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        ],
        dtype=np.int64,
    )
    at = changes.row[peaks]
    tree = view.ops
    place = tree.find(events, at)
    outer = tree.nesting.outermost(events.category[tree.row] == Category.CPU_OP)
    op = tree.rows_at(np.where(place >= 0, outer[place], -1) if len(tree) else place)
    steps = find_steps(view)
    columns = (
        view.rank_column(len(groups)),
        changes.type[groups.first],
        changes.device[groups.first],
        groups.sum(changes.size > 0),
        groups.sum(changes.size < 0),
        groups.sum(np.maximum(changes.size, 0)),
        changes.allocated[peaks],
        groups.max(changes.reserved),
        events.start_ns[at],
        steps.number_at(events.start_ns[at]) if len(steps) else np.full(len(at), NO_STEP),
        pick_texts(view.trace.names, np.append(events.name, np.int32(-1))[op]),
        changes.allocated[bounds[:-1]],
        changes.allocated[bounds[1:] - 1],
    )
    return Table.of(_COLUMNS, columns)


def measure_timeline(view: TraceView, options: TraceOptions) -> Table:
    """List how memory changed.

    Args:
        view: The trace; it must have recorded memory.
        options: Not used.

    Returns:
        A row an allocation (bytes above 0) or release (below 0), by device and time, with what was
        allocated and reserved after it.
    """
    del options
    changes = _find_changes(view)
    columns = (
        view.rank_column(len(changes.row)),
        changes.type,
        changes.device,
        view.events.start_ns[changes.row],
        changes.size,
        changes.allocated,
        changes.reserved,
    )
    return Table.of(_TIMELINE_COLUMNS, columns)


METRIC = Metric("memory", _COLUMNS, measure_memory, of=_find_rows)
TIMELINE = Metric(
    "memory_timeline", _TIMELINE_COLUMNS, measure_timeline, is_default=False, is_per_event=True
)
