"""What each thread of the host did at each time: the starts and ends of its events, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import Category
from whystuck.tracing.critical.kinds import (
    PathKind,
    are_backward,
    are_host_comm,
    are_sync_calls,
)
from whystuck.tracing.host.spans import find_data_waits
from whystuck.tracing.view import TraceView

# Whole numbers: int64, or int32 where rows of the trace are meant.
Rows = NDArray[Any]
Flags = NDArray[np.bool_]

_HOST = (
    Category.CPU_OP,
    Category.USER_ANNOTATION,
    Category.PYTHON,
    Category.RUNTIME,
    Category.DRIVER,
)


@dataclass(frozen=True)
class HostTimeline:
    """Bounds: starts and ends of events, thread after thread, each in order of time.

    From one bound to the next of its thread nothing begins and nothing ends. ``inner`` is the row
    of the innermost event that runs there, -1 when none does; ``kind`` is a `PathKind`. ``depth``
    counts the events that run. ``begin`` and ``finish`` map rows of the trace to bounds, -1 for
    events that are none of the host's. ``thread`` counts threads from 0.
    """

    time: Rows
    thread: Rows
    row: Rows
    is_start: Flags
    depth: Rows
    inner: Rows
    kind: NDArray[np.uint8]
    begin: NDArray[np.int32]
    finish: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.time)

    def inside(self, is_chosen: Flags) -> Flags:
        """Tell of each bound whether a chosen event runs from there on.

        Args:
            is_chosen: A flag for each event of the trace.
        """
        step = np.where(self.is_start, np.int32(1), np.int32(-1)) * is_chosen[self.row]
        return np.asarray(np.cumsum(step, dtype=np.int32) > 0)


def build_timeline(view: TraceView, without: Rows | None = None) -> HostTimeline:
    """Put the events of all threads of the host in order.

    Args:
        view: The trace; events that last beyond its window end with it.
        without: Rows to leave out.
    """
    events = view.events
    is_host = np.zeros(len(events), dtype=np.bool_)
    is_host[view.host_rows] = True
    is_host &= np.isin(events.category, _HOST)
    if without is not None:
        is_host[without] = False
    rows = np.flatnonzero(is_host)
    start, end = events.start_ns[rows], view.end_ns[rows]
    if view.cut_ns is not None:
        end = np.minimum(end, view.cut_ns)
    end = np.maximum(end, start)
    key = (events.pid[rows].astype(np.int64) << 32) + events.tid[rows]
    thread = np.searchsorted(np.unique(key), key).astype(np.int32)
    del key
    # Parents come before their children, which begin with them at the earliest.
    order = np.lexsort((-end, start, thread))
    rows = rows[order].astype(np.int32)
    start, end, thread = start[order], end[order], thread[order]
    sequence = _order_bounds(start, end, thread)
    count = len(rows)
    is_start = sequence < count
    which = np.where(is_start, sequence, sequence - count)
    row = rows[which]
    begin = np.full(len(events), -1, dtype=np.int32)
    finish = begin.copy()
    place = np.arange(2 * count, dtype=np.int32)
    begin[row[is_start]], finish[row[~is_start]] = place[is_start], place[~is_start]
    depth = np.cumsum(np.where(is_start, 1, -1), dtype=np.int32)
    inner = _find_inner(is_start, depth, row)
    timeline = HostTimeline(
        time=np.where(is_start, start[which], end[which]),
        thread=thread[which],
        row=row,
        is_start=is_start,
        depth=depth,
        inner=inner,
        kind=np.zeros(len(row), dtype=np.uint8),
        begin=begin,
        finish=finish,
    )
    timeline.kind[:] = _find_kinds(view, timeline)
    return timeline


def _order_bounds(start: Rows, end: Rows, thread: NDArray[np.int32]) -> Rows:
    """Order starts (0 to n) and ends (n to 2n) by thread and time.

    Of bounds at one time the ends come first, inner ones before outer ones. An event without
    length ends right behind its start.
    """
    count = len(start)
    index = np.arange(count)
    is_empty = start == end
    lasting = index[~is_empty][::-1]
    # Starts in their order, each end of an empty event behind its own start.
    pairs = np.stack([index, np.where(is_empty, index + count, -1)], axis=1).ravel()
    items = np.concatenate([lasting + count, pairs[pairs >= 0]])
    is_end = items >= count
    event = np.where(is_end, items - count, items)
    is_late = ~is_end | is_empty[event]
    key = 2 * np.where(is_end, end[event], start[event]) + is_late
    return np.asarray(items[np.lexsort((key, thread[event]))])


def _find_inner(is_start: Flags, depth: Rows, row: Rows) -> Rows:
    """Find the event that runs behind each bound: the last that began at the same depth."""
    # Sixteen bits are sorted much faster, and nothing is nested as deep as that.
    order = np.argsort(np.minimum(depth, 32767).astype(np.int16), kind="stable")
    place = np.arange(len(order), dtype=np.int32)
    last = np.maximum.accumulate(np.where(is_start[order], place, np.int32(-1)))
    inner = np.full(len(order), -1, dtype=np.int32)
    inner[order] = np.where(last >= 0, row[order[last]], np.int32(-1))
    inner[depth <= 0] = -1
    return inner


def _find_kinds(view: TraceView, timeline: HostTimeline) -> NDArray[np.uint8]:
    events, names = view.events, view.trace.names
    inner = timeline.inner
    name = events.name[inner]
    is_call = np.isin(events.category[inner], (Category.RUNTIME, Category.DRIVER))
    kind = np.where(is_call & are_sync_calls(names)[name], PathKind.SYNC, PathKind.HOST)
    is_data = np.zeros(len(events), dtype=np.bool_)
    is_data[find_data_waits(view)] = True
    for is_meant, meaning in (
        (are_host_comm(names)[events.name], PathKind.COMM),
        (is_data, PathKind.DATA_LOADING),
    ):
        if is_meant.any():
            kind = np.where(timeline.inside(is_meant), meaning, kind)
    return np.where(inner < 0, PathKind.UNKNOWN, kind).astype(np.uint8)


def find_main_thread(view: TraceView, timeline: HostTimeline) -> int:
    """Return the thread that has the steps, else that with most outside of autograd; or -1."""
    if not len(timeline):
        return -1
    is_step = np.array([name.startswith("ProfilerStep") for name in view.trace.names])
    names = view.events.name[timeline.row]
    steps = np.bincount(timeline.thread[is_step[names]], minlength=1)
    if steps.any():
        return int(np.argmax(steps))
    outside = ~timeline.inside(are_backward(view.trace.names)[view.events.name])
    return int(np.argmax(np.bincount(timeline.thread[outside], minlength=1)))


def find_backward_threads(view: TraceView, timeline: HostTimeline) -> Rows:
    """Return the threads on which autograd's engine ran; on the CPU it runs on the main thread."""
    is_step = are_backward(view.trace.names)[view.events.name[timeline.row]]
    threads = np.unique(timeline.thread[is_step])
    return np.asarray(threads[threads != find_main_thread(view, timeline)])
