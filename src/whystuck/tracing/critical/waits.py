"""What threads of the host and streams of devices waited for, as far as a trace tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.trace import Category
from whystuck.tracing.critical.host import HostTimeline, find_backward_threads
from whystuck.tracing.critical.kinds import are_free_calls, are_sync_calls
from whystuck.tracing.critical.work import DeviceWork, find_keys
from whystuck.tracing.view import TraceView

# Whole numbers: int64, or int32 where rows of the trace are meant.
Rows = NDArray[Any]

# Launches block when a stream's queue is this full; drivers hold some places back.
_FULL_QUEUE = 0.9
# Or rather, only a launch that takes this long did block.
_BLOCKED_NS = 20_000
_STREAM_SYNC, _EVENT_SYNC, _WAIT_EVENT = "Stream Sync", "Event Sync", "Stream Wait Event"


@dataclass(frozen=True)
class HostWaits:
    """Calls that returned when device work had ended, or, of ``is_start``, had begun.

    ``row`` are the calls, ``piece`` the work of `DeviceWork`.
    """

    row: Rows
    piece: Rows
    is_start: NDArray[np.bool_]


@dataclass(frozen=True)
class Handovers:
    """Bounds of one thread that let another one go on at a bound of its own.

    Where ``is_return`` the first thread had been waiting since the bound ``since``, otherwise -1.
    """

    source: Rows
    target: Rows
    is_return: NDArray[np.bool_]


def find_host_waits(view: TraceView, work: DeviceWork, queue_limit: int) -> HostWaits:
    """Find the calls of the host that waited for a device.

    Args:
        view: The trace.
        work: Its device work.
        queue_limit: How much work a stream takes before launches block.

    Returns:
        The calls, each with the work that ended last before it returned.
    """
    found = [_find_syncs(view, work), _find_copies(view, work)]
    row = np.concatenate([one[0] for one in found])
    piece = np.concatenate([one[1] for one in found])
    queued = _find_blocked(view, work, queue_limit)
    return HostWaits(
        np.concatenate([row, queued[0]]),
        np.concatenate([piece, queued[1]]),
        np.repeat([False, True], [len(row), len(queued[0])]),
    )


def _find_syncs(view: TraceView, work: DeviceWork) -> tuple[Rows, Rows]:
    events = view.events
    is_call = np.isin(events.category, (Category.RUNTIME, Category.DRIVER))
    names = view.trace.names
    is_call &= (are_sync_calls(names) | are_free_calls(names))[events.name]
    rows = np.flatnonzero(is_call)
    if view.cut_ns is not None:
        rows = rows[events.start_ns[rows] < view.cut_ns]
    only, limit = _find_sync_targets(view, work, rows)
    start, end = events.start_ns[rows], view.end_ns[rows]
    best = np.full(len(rows), -1, dtype=np.int64)
    for stream in range(len(work.stream_keys)):
        piece = work.last_given(stream, limit)
        ended = work.end[piece]
        # What ended before the call was not waited for; what ended later, was not either.
        fits = (piece >= 0) & (ended > start) & (ended <= end)
        fits &= (only == stream) | (only < 0)
        best = np.where(fits & ((best < 0) | (ended > work.end[best])), piece, best)
    return rows[best >= 0], best[best >= 0]


def _find_sync_targets(view: TraceView, work: DeviceWork, rows: Rows) -> tuple[Rows, Rows]:
    """Find the stream that each call waits for (-1: any) and the time until which it counts."""
    events, names = view.events, view.trace.names
    only = np.full(len(rows), -1, dtype=np.int64)
    limit = events.start_ns[rows].copy()
    syncs = np.flatnonzero(events.category == Category.SYNC)
    if not len(syncs):
        return only, limit
    order = np.argsort(events.correlation[syncs], kind="stable")
    syncs = syncs[order]
    place = find_keys(events.correlation[syncs], events.correlation[rows])
    sync = syncs[place]
    known = (place >= 0) & (events.correlation[rows] >= 0)
    name = events.name[sync]
    is_stream = known & np.array([one == _STREAM_SYNC for one in names])[name]
    stream = work.find_stream(events.device[sync], events.stream[sync])
    only = np.where(is_stream & (stream >= 0), stream, only)
    is_event = known & np.array([one == _EVENT_SYNC for one in names])[name]
    waited = work.find_stream(events.device[sync], view.trace.get("wait_stream").at(sync))
    recorded = _find_records(view, sync)
    is_event &= (waited >= 0) & (recorded >= 0)
    only = np.where(is_event, waited, only)
    return only, np.where(is_event, recorded, limit)


def _find_records(view: TraceView, sync: Rows) -> Rows:
    """Return when the event of each wait was recorded on the host, -1 when that is unknown."""
    events, calls = view.events, view.all_call_rows
    wanted = view.trace.get("wait_event_correlation").at(sync)
    order = np.argsort(events.correlation[calls], kind="stable")
    place = find_keys(events.correlation[calls][order], wanted)
    if not len(calls):
        return np.full(len(sync), -1, dtype=np.int64)
    return np.where((place >= 0) & (wanted >= 0), events.start_ns[calls[order][place]], -1)


def _find_copies(view: TraceView, work: DeviceWork) -> tuple[Rows, Rows]:
    """Find calls that returned only when their own copy had ended, as with pageable memory."""
    events = view.events
    is_copy = (events.category[work.row] == Category.MEMCPY) & (work.launch >= 0)
    piece = np.flatnonzero(is_copy)
    call = work.launch[piece]
    is_waited = (work.end[piece] <= view.end_ns[call]) & (work.end[piece] > events.start_ns[call])
    return call[is_waited], piece[is_waited]


def _find_blocked(view: TraceView, work: DeviceWork, queue_limit: int) -> tuple[Rows, Rows]:
    """Find launches that waited for a place in a full queue: work of the stream began meanwhile."""
    events = view.events
    none = np.empty(0, dtype=np.int64)
    piece = np.flatnonzero(work.launch >= 0)
    call = work.launch[piece]
    is_long = events.duration_ns[call] >= _BLOCKED_NS
    piece, call = piece[is_long], call[is_long]
    if not len(piece):
        return none, none
    rows, begun = [none], [none]
    for stream in np.unique(work.stream[piece]).tolist():
        mine = work.stream[piece] == stream
        first, end = int(work.first[stream]), int(work.first[stream + 1])
        starts = work.start[first:end]
        at = events.start_ns[call[mine]]
        waiting = piece[mine] - first - np.searchsorted(starts, at, side="right")
        last = first + np.searchsorted(starts, view.end_ns[call[mine]], side="right") - 1
        is_full = (waiting >= _FULL_QUEUE * queue_limit) & (last >= first)
        is_full &= work.start[last] > at
        rows.append(call[mine][is_full])
        begun.append(last[is_full])
    return np.concatenate(rows), np.concatenate(begun)


def find_event_waits(view: TraceView, work: DeviceWork) -> tuple[Rows, Rows]:
    """Find streams that waited for an event of another stream, from the syncs of the trace.

    Args:
        view: The trace.
        work: Its device work.

    Returns:
        Pieces: the last before the event was recorded, and the first behind the wait for it.
    """
    events, names = view.events, view.trace.names
    none = np.empty(0, dtype=np.int64)
    is_wait = np.array([one == _WAIT_EVENT for one in names], dtype=np.bool_)
    sync = np.flatnonzero(events.category == Category.SYNC)
    sync = sync[is_wait[events.name[sync]]]
    calls = view.all_call_rows
    if not len(sync) or not len(calls):
        return none, none
    waiter = work.find_stream(events.device[sync], events.stream[sync])
    waited = work.find_stream(events.device[sync], view.trace.get("wait_stream").at(sync))
    recorded = _find_records(view, sync)
    order = np.argsort(events.correlation[calls], kind="stable")
    place = find_keys(events.correlation[calls][order], events.correlation[sync])
    # The wait itself is a call of the host; without it, the time on the device has to do.
    called = np.where(place >= 0, events.start_ns[calls[order][place]], events.start_ns[sync])
    known = (waiter >= 0) & (waited >= 0) & (recorded >= 0) & (waiter != waited)
    before, behind = [none], [none]
    for one in np.unique(waited[known]).tolist():
        for other in np.unique(waiter[known & (waited == one)]).tolist():
            mine = known & (waited == one) & (waiter == other)
            last = work.last_given(one, recorded[mine])
            following = work.last_given(other, called[mine]) + 1
            following = np.where(following == 0, work.first[other], following)
            both = (last >= 0) & (following < work.first[other + 1])
            before.append(last[both])
            behind.append(following[both])
    return np.concatenate(before), np.concatenate(behind)


def find_handovers(view: TraceView, timeline: HostTimeline) -> Handovers:
    """Find where the main thread left the work to autograd's threads, and got it back.

    The main thread waits while they run: none of its events begins or ends meanwhile.

    Args:
        view: The trace.
        timeline: Its host.
    """
    backward = find_backward_threads(view, timeline)
    main = _find_main(view, timeline, backward)
    none = np.empty(0, dtype=np.int64)
    sources, targets, is_return = [none], [none], [np.empty(0, dtype=np.bool_)]
    own = np.flatnonzero(timeline.thread == main)
    for thread in backward.tolist() if len(own) else ():
        bounds = np.flatnonzero(timeline.thread == thread)
        gap = np.searchsorted(timeline.time[own], timeline.time[bounds], side="right") - 1
        changes = np.flatnonzero(np.diff(gap)) + 1
        first, last = np.r_[0, changes], np.r_[changes - 1, len(bounds) - 1]
        # A burst that is cut by an event of the main thread hands nothing over there.
        first = first[(timeline.depth[bounds[first]] == 1) & (gap[first] >= 0)]
        first = first[timeline.is_start[bounds[first]]]
        last = last[(timeline.depth[bounds[last]] == 0) & (gap[last] < len(own) - 1)]
        sources += [own[gap[first]], bounds[last]]
        targets += [bounds[first], own[gap[last] + 1]]
        is_return += [np.zeros(len(first), dtype=np.bool_), np.ones(len(last), dtype=np.bool_)]
    return Handovers(np.concatenate(sources), np.concatenate(targets), np.concatenate(is_return))


def _find_main(view: TraceView, timeline: HostTimeline, backward: Rows) -> int:
    """Return the thread that has the steps, else the one with most events; -1 for none."""
    if not len(timeline):
        return -1
    counts = np.bincount(timeline.thread)
    starts = view.steps[1]
    if len(starts):
        step_names = [name.startswith("ProfilerStep") for name in view.trace.names]
        is_step = np.array(step_names)[view.events.name[timeline.row]]
        steps = np.bincount(timeline.thread[is_step], minlength=len(counts))
        counts = np.where(steps > 0, counts + len(timeline), counts)
    counts = counts.copy()
    counts[backward] = 0
    return int(np.argmax(counts)) if counts.any() else -1
