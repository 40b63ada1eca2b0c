"""Counter tracks for a trace: queues, bandwidth, use of devices, and memory, over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import Category
from whystuck.tracing.arrays.intervals import cover, unite
from whystuck.tracing.device.copies import measure_copy_series
from whystuck.tracing.device.queue_length import measure_queue_series
from whystuck.tracing.view import TraceView

Whole = NDArray[np.int64]
Event = dict[str, Any]

# The share of time in which a device works is measured in so many windows, none shorter than that.
_WINDOWS = 1000
_LEAST_WINDOW_NS = 100_000
_DEVICE_TYPES = {0: "cpu", 1: "cuda"}


def list_counter_events(view: TraceView, origin_ns: int) -> Iterator[Event]:
    """Make counter events of a trace.

    Four kinds of tracks: ``queue length`` of each stream, the number of launched pieces of work
    that have not begun; ``memory bandwidth`` of each way of copies, in 10^9 bytes a second;
    ``device busy`` of each device, the share of a window of time (a thousandth of the trace, 100 us
    at least) in which it works; and ``allocated memory`` of each device whose allocations the
    trace has, in bytes.

    Args:
        view: The trace; queues and copies are those of its window.
        origin_ns: The time 0 of the file, on the clock of ``Trace.base_ns``.

    Yields:
        Events of phase ``C``, track by track; ``ts`` is ns.
    """
    shift = view.trace.base_ns - origin_ns
    pids = _find_pids(view)
    queues = measure_queue_series(view, view.options)
    tracks = (queues["device"].tolist(), queues["stream"].tolist())
    names = [f"queue length (stream {stream})" for stream in tracks[1]]
    yield from _count(
        names, [pids.get(one, 0) for one in tracks[0]], queues["ts_ns"] + shift, queues["length"]
    )
    copies = measure_copy_series(view, view.options)
    names = [f"memory bandwidth {kind} (GB/s)" for kind in copies["kind"].tolist()]
    at = [pids.get(one, 0) for one in copies["device"].tolist()]
    yield from _count(names, at, copies["ts_ns"] + shift, copies["gbps"])
    yield from _count_busy(view, pids, shift)
    yield from _count_memory(view, shift)


def _find_pids(view: TraceView) -> dict[int, int]:
    """Return the process of each device, as it is in the file."""
    pids: dict[int, int] = {}
    pid = view.events.pid[view.device_rows].tolist()
    for device, one in zip(view.device.tolist(), pid, strict=True):
        # A text of the file has a number of ours, below -1: it cannot be written.
        pids.setdefault(device, one if one >= 0 else max(device, 0))
    return pids


def _count(
    names: Iterable[str], pids: Iterable[int], ts_ns: Whole, values: NDArray[np.generic]
) -> Iterator[Event]:
    for name, pid, ts, value in zip(names, pids, ts_ns.tolist(), values.tolist(), strict=True):
        shown = round(value, 6) if isinstance(value, float) else value
        yield {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": ts, "args": {"value": shown}}


def _count_busy(view: TraceView, pids: dict[int, int], shift: int) -> Iterator[Event]:
    rows = view.device_rows
    if not len(rows):
        return
    start, end = view.events.start_ns[rows], view.end_ns[rows]
    first, last = int(start.min()), int(end.max())
    width = max((last - first) // _WINDOWS, _LEAST_WINDOW_NS)
    edges = np.arange(first, last + width, width, dtype=np.int64)
    for device in np.unique(view.device).tolist():
        mine = view.device == device
        before = cover(unite(start[mine], end[mine]), edges)
        share = np.diff(before) / width
        names = ["device busy (share)"] * (len(edges))
        yield from _count(
            names, [pids.get(device, 0)] * len(edges), edges + shift, np.r_[share, 0.0]
        )


def _count_memory(view: TraceView, shift: int) -> Iterator[Event]:
    events, trace = view.events, view.trace
    rows = np.flatnonzero(events.category == Category.MEMORY)
    total = trace.get("memory_allocated_bytes").at(rows)
    rows, total = rows[total >= 0], total[total >= 0]
    order = np.argsort(events.start_ns[rows], kind="stable")
    rows, total = rows[order], total[order]
    kinds = trace.get("memory_device_type").at(rows).tolist()
    devices = trace.get("memory_device").at(rows).tolist()
    names = [
        f"allocated memory {_name_device(int(kind), int(device))} (bytes)"
        for kind, device in zip(kinds, devices, strict=True)
    ]
    pids = np.maximum(events.pid[rows], 0).tolist()
    yield from _count(names, pids, events.start_ns[rows] + shift, total.astype(np.int64))


def _name_device(kind: int, device: int) -> str:
    name = _DEVICE_TYPES.get(kind, f"device type {kind}")
    return f"{name}:{device}" if device >= 0 else name
