"""What threads of the host and streams of devices waited for, as far as a trace tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import Category
from whystuck.tracing.critical.host import HostTimeline, find_backward_threads, find_main_thread
from whystuck.tracing.critical.kinds import are_free_calls, are_sync_calls
from whystuck.tracing.critical.stream_order import find_rounding
from whystuck.tracing.critical.work import DeviceWork, find_keys
from whystuck.tracing.view import TraceView

# Whole numbers: int64, or int32 where rows of the trace are meant.
Rows = NDArray[Any]

# Launches block when a stream's queue is this full; drivers hold some places back.
_FULL_QUEUE = 0.9
# Or rather, only a launch that takes this long did block.
_BLOCKED_NS = 20_000
# A thread that waited for a collective goes on so soon after it, or after so much of the wait.
_SOON_NS = 200_000
_SOON_SHARE = 0.25
_STREAM_SYNC, _EVENT_SYNC, _WAIT_EVENT = "Stream Sync", "Event Sync", "Stream Wait Event"


@dataclass(frozen=True)
class HostWaits:
    """Bounds that a thread reached when a piece of work had ended, or, of ``is_start``, had begun.

    ``since`` is the bound from which on it waited, ``target`` the one that it then reached.
    """

    since: Rows
    target: Rows
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


def find_host_waits(
    view: TraceView, timeline: HostTimeline, work: DeviceWork, queue_limit: int
) -> HostWaits:
    """Find where threads of the host waited for a device, or for a collective of the host.

    Args:
        view: The trace.
        timeline: Its host.
        work: Its device work.
        queue_limit: How much work a stream takes before launches block.

    Returns:
        The waits, each with the work that ended last before it was over.
    """
    found = [_find_syncs(view, work), _find_copies(view, work)]
    found.append(_find_blocked(view, work, queue_limit))
    row = np.concatenate([one[0] for one in found])
    piece = np.concatenate([one[1] for one in found])
    is_start = np.repeat([False, False, True], [len(one[0]) for one in found])
    since, target = timeline.begin[row], timeline.finish[row]
    known = (since >= 0) & (target >= 0)
    silent = _find_silent(timeline, work)
    return HostWaits(
        np.concatenate([since[known], silent[0]]),
        np.concatenate([target[known], silent[1]]),
        np.concatenate([piece[known], silent[2]]),
        np.concatenate([is_start[known], np.zeros(len(silent[0]), dtype=np.bool_)]),
    )


def _find_silent(timeline: HostTimeline, work: DeviceWork) -> tuple[Rows, Rows, Rows]:
    """Find threads that waited for a collective of the host, which no event of theirs tells.

    The thread that started it did nothing until it ended, and went on soon then.
    """
    none = np.empty(0, dtype=np.int64)
    piece = np.flatnonzero((work.device[work.stream] < 0) & (work.launch >= 0))
    given = timeline.begin[work.launch[piece]] if len(piece) else none
    piece, given = piece[given >= 0], given[given >= 0]
    since, target, waited = [none], [none], [none]
    for thread in np.unique(timeline.thread[given]).tolist():
        own = np.flatnonzero(timeline.thread == thread)
        mine = piece[timeline.thread[given] == thread]
        ended = work.end[mine]
        before = np.searchsorted(timeline.time[own], ended, side="left") - 1
        inside = (before >= 0) & (before < len(own) - 1)
        mine, ended, before = mine[inside], ended[inside], before[inside]
        begin, end = timeline.time[own[before]], timeline.time[own[before + 1]]
        rest = end - ended
        fits = (work.given_ns[mine] < begin) & (end > begin)
        fits &= (rest <= _SOON_NS) | (rest <= _SOON_SHARE * (ended - begin))
        since.append(own[before[fits]])
        target.append(own[before[fits] + 1])
        waited.append(mine[fits])
    return np.concatenate(since), np.concatenate(target), np.concatenate(waited)


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
    rounded_ns = find_rounding(work)
    for stream in np.flatnonzero(work.device >= 0).tolist():
        piece = work.last_given(stream, limit)
        ended = work.end[piece]
        # What ended before the call was not waited for; what ended later, was not either.
        fits = (piece >= 0) & (ended > start) & (ended <= end + rounded_ns)
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
    main = find_main_thread(view, timeline)
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
