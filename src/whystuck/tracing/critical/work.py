"""The work of devices, stream after stream, and what was last given to each at some time.

Collectives of the host, which gloo runs on threads of its own, are work of the same kind: each of
these threads is a stream of the device -1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import Category
from whystuck.tracing.collectives.rows import find_comm_rows
from whystuck.tracing.critical.kinds import CLASS_KINDS, PathKind
from whystuck.tracing.view import TraceView

# Whole numbers: int64, or int32 where rows of the trace are meant.
Rows = NDArray[Any]

_HOST_EVENTS = (
    Category.CPU_OP,
    Category.USER_ANNOTATION,
    Category.PYTHON,
    Category.RUNTIME,
    Category.DRIVER,
)


@dataclass(frozen=True)
class DeviceWork:
    """Work of devices by stream and start; a position in these columns is a *piece*.

    ``row`` and ``launch`` are rows of the trace, ``launch`` -1 when the call is not in it;
    ``given_ns`` is when the work was launched, or began where that is unknown. ``stream`` counts
    streams of all devices from 0; ``first`` tells where each begins, and where the last ends.
    ``stream_keys`` holds device and stream, or -1 and the thread, of each: device << 32 + stream.
    """

    row: Rows
    start: Rows
    end: Rows
    kind: NDArray[np.uint8]
    launch: Rows
    given_ns: Rows
    stream: Rows
    first: Rows
    stream_keys: Rows

    def __len__(self) -> int:
        return len(self.row)

    @property
    def device(self) -> Rows:
        """The device of each stream, -1 for threads of the host."""
        return self.stream_keys >> 32

    def find_stream(self, device: Rows, stream: Rows) -> Rows:
        """Return the number of each stream, -1 for one without work."""
        return find_keys(self.stream_keys, _join(device, stream))

    def last_given(self, stream: int, before_ns: Rows) -> Rows:
        """Return the last piece of a stream that was launched before some times, or -1."""
        first, end = int(self.first[stream]), int(self.first[stream + 1])
        # A stream works in the order of launches; of graphs all work has the time of one call.
        given = np.maximum.accumulate(self.given_ns[first:end])
        count = np.searchsorted(given, before_ns, side="left")
        return np.where(count > 0, first + count - 1, -1)


def find_keys(keys: Rows, wanted: Rows) -> Rows:
    """Return where values lie in an ascending array, -1 for those that do not."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, place, -1)


def _join(device: Rows, stream: Rows) -> Rows:
    return (device.astype(np.int64) << 32) + (stream.astype(np.int64) & 0xFFFFFFFF)


def collect_work(view: TraceView) -> DeviceWork:
    """Order the device work of a trace's window, or the collectives of its host.

    Args:
        view: The trace.
    """
    events, rows, launch = view.events, view.device_rows, view.launch_rows
    kinds = np.full(max(CLASS_KINDS) + 1, PathKind.COMPUTE, dtype=np.uint8)
    kinds[list(CLASS_KINDS)] = list(CLASS_KINDS.values())
    kind = kinds[view.device_class]
    keys = _join(events.device[rows], events.stream[rows])
    if not (kind == PathKind.COMM).any():
        own, given = _find_host_comm(view)
        rows, launch = np.concatenate([rows, own]), np.concatenate([launch, given])
        kind = np.concatenate([kind, np.full(len(own), PathKind.COMM, dtype=np.uint8)])
        keys = np.concatenate([keys, _join(np.full(len(own), -1), events.tid[own])])
    start = events.start_ns[rows]
    end = np.maximum(view.end_ns[rows], start)
    stream_keys = np.unique(keys)
    stream = np.searchsorted(stream_keys, keys)
    order = np.lexsort((end, start, stream))
    rows, start, end, stream = rows[order], start[order], end[order], stream[order]
    launch = launch[order]
    given = np.where(launch >= 0, events.start_ns[launch], start) if len(rows) else start
    return DeviceWork(
        row=rows,
        start=start,
        end=end,
        kind=kind[order],
        launch=launch,
        # Clocks of host and device may differ a little: nothing is launched after its start.
        given_ns=np.minimum(given, start),
        stream=stream,
        first=np.searchsorted(stream, np.arange(len(stream_keys) + 1)),
        stream_keys=stream_keys,
    )


def _find_host_comm(view: TraceView) -> tuple[Rows, Rows]:
    """Find collectives on threads that do nothing else, and the ops that started them."""
    events, found = view.events, find_comm_rows(view)
    rows, launch = found.work, found.launch
    if found.is_device or not len(rows):
        return rows[:0], launch[:0]
    # By thread: how many of its events are collectives that were taken, and how many there are.
    host = np.flatnonzero(np.isin(events.category, _HOST_EVENTS))
    key = _join(events.pid, events.tid)
    threads = np.unique(key[host])
    all_events = np.bincount(np.searchsorted(threads, key[host]), minlength=len(threads))
    place = np.searchsorted(threads, key[rows])
    own = np.bincount(place, minlength=len(threads))
    kept = (own == all_events)[place] & (launch != rows)
    if view.cut_ns is not None:
        begun = np.where(launch >= 0, events.start_ns[launch], events.start_ns[rows])
        kept &= begun < view.cut_ns
    return rows[kept], launch[kept]
