"""The work of devices, stream after stream, and what was last given to each at some time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.critical.kinds import CLASS_KINDS, PathKind
from whystuck.tracing.view import TraceView

# Whole numbers: int64, or int32 where rows of the trace are meant.
Rows = NDArray[Any]


@dataclass(frozen=True)
class DeviceWork:
    """Work of devices by stream and start; a position in these columns is a *piece*.

    ``row`` and ``launch`` are rows of the trace, ``launch`` -1 when the call is not in it;
    ``given_ns`` is when the work was launched, or began where that is unknown. ``stream`` counts
    streams of all devices from 0; ``first`` tells where each begins, and where the last ends.
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
    return (device.astype(np.int64) << 32) + stream.astype(np.int64)


def collect_work(view: TraceView) -> DeviceWork:
    """Order the device work of a trace's window.

    Args:
        view: The trace.
    """
    events, rows = view.events, view.device_rows
    start = events.start_ns[rows]
    end = np.maximum(view.end_ns[rows], start)
    keys, stream = np.unique(_join(events.device[rows], events.stream[rows]), return_inverse=True)
    order = np.lexsort((end, start, stream))
    rows, start, end, stream = rows[order], start[order], end[order], stream[order]
    launch = view.launch_rows[order]
    kinds = np.full(max(CLASS_KINDS) + 1, PathKind.COMPUTE, dtype=np.uint8)
    kinds[list(CLASS_KINDS)] = list(CLASS_KINDS.values())
    given = np.where(launch >= 0, events.start_ns[launch], start) if len(rows) else start
    return DeviceWork(
        row=rows,
        start=start,
        end=end,
        kind=kinds[view.device_class[order]],
        launch=launch,
        # Clocks of host and device may differ a little: nothing is launched after its start.
        given_ns=np.minimum(given, start),
        stream=stream.astype(np.int64),
        first=np.searchsorted(stream, np.arange(len(keys) + 1)),
        stream_keys=keys,
    )
