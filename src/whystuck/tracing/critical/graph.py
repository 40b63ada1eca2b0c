"""The graph of a rank: times as nodes, and edges that tell why none of them could be earlier.

Nodes are numbered in order of time, which is an order in which every edge goes forward. The time of
a node is the largest of ``time[src] + weight`` over the edges into it: a replay of the graph with
the weights as they are gives exactly the times that were measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.critical.host import HostTimeline, build_timeline, find_backward_threads
from whystuck.tracing.critical.kinds import EdgeKind
from whystuck.tracing.critical.stream_order import find_given_way, find_stream_order
from whystuck.tracing.critical.waits import (
    find_event_waits,
    find_handovers,
    find_host_waits,
)
from whystuck.tracing.critical.work import DeviceWork, collect_work
from whystuck.tracing.view import TraceView

# Whole numbers: int64, or int32 where rows of the trace are meant.
Rows = NDArray[Any]

# A stream that waits for another one begins this soon behind the end of what it waited for.
_WAKE_NS = 10_000


@dataclass(frozen=True)
class PathGraph:
    """Nodes and edges of one rank; edges by the node into which they go.

    ``bound`` is the position of a node in the timeline of the host, -1 for others; ``piece`` that
    in the device work, where ``is_end`` tells ends from starts. Node 0 is the beginning, at the
    time of the first event. ``first`` tells where the edges into each node begin.
    """

    view: TraceView
    timeline: HostTimeline
    work: DeviceWork
    time: Rows
    bound: Rows
    piece: Rows
    is_end: NDArray[np.bool_]
    src: Rows
    dst: Rows
    weight: Rows
    kind: NDArray[np.uint8]
    first: Rows

    def __len__(self) -> int:
        return len(self.time)

    @property
    def wall_ns(self) -> int:
        """The time from the first node to the last."""
        return int(self.time[-1] - self.time[0]) if len(self) else 0

    @cached_property
    def binding(self) -> Rows:
        """The edge that set the time of each node, -1 for the first node."""
        return _find_binding(self.time, self.src, self.weight, self.first).astype(np.int32)

    @cached_property
    def backward(self) -> Rows:
        """The threads of the timeline on which autograd's engine ran."""
        return find_backward_threads(self.view, self.timeline)

    @cached_property
    def parent(self) -> Rows:
        """The node before each on its longest path; the first node is its own."""
        return (
            np.where(self.binding >= 0, self.src[self.binding], 0)
            if len(self.src)
            else self.time * 0
        )

    @cached_property
    def piece_start(self) -> Rows:
        """The node at which each piece of device work begins."""
        nodes = np.flatnonzero((self.piece >= 0) & ~self.is_end)
        found = np.empty(len(self.work), dtype=np.int64)
        found[self.piece[nodes]] = nodes
        return found

    @cached_property
    def piece_end(self) -> Rows:
        """The node at which each piece of device work ends."""
        nodes = np.flatnonzero(self.is_end)
        found = np.empty(len(self.work), dtype=np.int64)
        found[self.piece[nodes]] = nodes
        return found


class _Edges:
    """Edges by the numbers of nodes before they are put in order."""

    def __init__(self) -> None:
        self.parts: list[tuple[Rows, Rows, Rows, EdgeKind]] = []

    def add(self, kind: EdgeKind, src: Rows, dst: Rows, weight: Rows | int) -> None:
        self.parts.append((src, dst, np.broadcast_to(np.int64(weight), len(src)), kind))

    def join(self) -> tuple[Rows, Rows, Rows, NDArray[np.uint8]]:
        src, dst, weight = (np.concatenate([part[one] for part in self.parts]) for one in range(3))
        counts = [len(part[0]) for part in self.parts]
        kind = np.repeat(np.array([part[3] for part in self.parts], dtype=np.uint8), counts)
        return src.astype(np.int64), dst.astype(np.int64), weight, kind


def build_graph(view: TraceView) -> PathGraph:
    """Build the graph of a rank.

    Args:
        view: Its trace; the graph covers its window.
    """
    return _Builder(view).build()


class _Builder:
    def __init__(self, view: TraceView) -> None:
        self.view = view
        self.work = collect_work(view)
        self.ended = find_given_way(self.work)
        self.timeline = build_timeline(view, without=self.work.row)
        limit = view.options.queue_limit
        self.waits = find_host_waits(view, self.timeline, self.work, limit)
        # Times are rounded: what a call waited for does not end behind it.
        waited = self.waits.piece[~self.waits.is_start]
        until = self.timeline.time[self.waits.target[~self.waits.is_start]]
        np.minimum.at(self.ended, waited, np.maximum(until, self.work.start[waited]))
        self.handovers = find_handovers(view, self.timeline)
        self.joints = self._find_joints()
        self.edges = _Edges()
        joint_ns, work = self.timeline.time[self.joints], self.work
        begin = min([int(part.min()) for part in (joint_ns, work.start) if len(part)], default=0)
        self.time = np.concatenate(
            [[begin], joint_ns, np.stack([work.start, self.ended], axis=1).ravel()]
        ).astype(np.int64)

    def _find_joints(self) -> Rows:
        """Return the bounds that are nodes: all others lie on an edge."""
        timeline, work, waits = self.timeline, self.work, self.waits
        changes = np.flatnonzero(np.diff(timeline.thread))
        ends = [0, len(timeline) - 1] if len(timeline) else []
        parts: list[Rows] = [
            np.asarray(ends, dtype=np.int64),
            changes,
            changes + 1,
            timeline.begin[work.launch[work.launch >= 0]],
            waits.since,
            waits.target,
            self.handovers.source,
            self.handovers.target,
        ]
        is_joint = np.zeros(len(timeline) + 1, dtype=np.bool_)
        for part in parts:
            is_joint[part] = True
        # What is -1 has set the place behind the last one.
        is_joint = is_joint[:-1]
        self.number = np.cumsum(is_joint, dtype=np.int32)
        return np.flatnonzero(is_joint)

    def _node_of(self, bound: Rows) -> Rows:
        return self.number[bound].astype(np.int64)

    def _start_of(self, piece: Rows) -> Rows:
        return 1 + len(self.joints) + 2 * piece

    def build(self) -> PathGraph:
        self._add_host()
        self._add_device()
        self._infer()
        count = len(self.time)
        is_end = np.zeros(count, dtype=np.bool_)
        pieces = np.arange(len(self.work))
        is_end[self._start_of(pieces) + 1] = True
        piece, bound = np.full(count, -1), np.full(count, -1)
        bound[1 : 1 + len(self.joints)] = self.joints
        piece[self._start_of(pieces)] = piece[self._start_of(pieces) + 1] = pieces
        order = self._order()
        place = np.empty(count, dtype=np.int64)
        place[order] = np.arange(count)
        src, dst, weight, kind = self.edges.join()
        self.edges.parts.clear()
        src, dst = place[src], place[dst]
        time = self.time[order]
        src, dst, weight, kind = _close(time, src, dst, weight, kind)
        first = np.searchsorted(dst, np.arange(count + 1))
        weight = _fill_slack(time, src, weight, first)
        return PathGraph(
            view=self.view,
            timeline=self.timeline,
            work=self.work,
            time=time,
            bound=bound[order].astype(np.int32),
            piece=piece[order].astype(np.int32),
            is_end=is_end[order],
            src=src.astype(np.int32),
            dst=dst.astype(np.int32),
            weight=weight,
            kind=kind,
            first=first,
        )

    def _order(self) -> Rows:
        """Order nodes by time; at one time work ends, then the host acts, then work begins."""
        phase = np.ones(len(self.time), dtype=np.int64)
        phase[0] = 0
        pieces = np.arange(len(self.work))
        phase[self._start_of(pieces)] = 2
        lasts = self.ended > self.work.start
        phase[self._start_of(pieces) + 1] = np.where(lasts, 0, 2)
        return np.argsort(3 * (self.time - self.time[0]) + phase, kind="stable")

    def _add_host(self) -> None:
        timeline, waits, joints = self.timeline, self.waits, self.joints
        bounds_ns = timeline.time[joints]
        # The latest time at which something else let each node go on; before its own past if none.
        woken = np.full(len(joints) + 1, np.iinfo(np.int64).min)
        held = woken.copy()
        target = self._node_of(waits.target)
        source = self._start_of(waits.piece) + ~waits.is_start
        self.edges.add(EdgeKind.SYNC, source, target, self.time[target] - self.time[source])
        np.maximum.at(woken, target, self.time[source])
        given = self.handovers
        source, target = self._node_of(given.source), self._node_of(given.target)
        self.edges.add(EdgeKind.HANDOVER, source, target, self.time[target] - self.time[source])
        back, out = given.is_return, ~given.is_return
        np.maximum.at(woken, target[back], self.time[source[back]])
        # Until the other thread began, the one that gave it work was at work itself.
        np.maximum.at(held, source[out], -self.time[target[out]])
        is_idle = np.zeros(len(joints) + 1, dtype=np.bool_)
        is_idle[target[out]] = True
        same = timeline.thread[joints[1:]] == timeline.thread[joints[:-1]]
        src = 1 + np.flatnonzero(same)
        dst, gap = src + 1, np.diff(bounds_ns)[same]
        waited = np.minimum(gap, bounds_ns[dst - 1] - np.maximum(woken[dst], bounds_ns[src - 1]))
        is_held = (held[src] > np.iinfo(np.int64).min) & (woken[dst] > bounds_ns[src - 1])
        begun = np.clip(-np.where(is_held, held[src], 0) - bounds_ns[src - 1], 0, gap - waited)
        weight = np.where(is_idle[dst], 0, waited + np.where(is_held, begun, 0))
        self.edges.add(EdgeKind.CHAIN, src, dst, weight)

    def _add_device(self) -> None:
        timeline, work = self.timeline, self.work
        pieces = np.arange(len(work))
        start = self._start_of(pieces)
        self.edges.add(EdgeKind.WORK, start, start + 1, self.ended - work.start)
        before, behind = find_stream_order(work, self.ended)
        self.edges.add(EdgeKind.STREAM, start[before] + 1, start[behind], 0)
        before, behind = find_event_waits(self.view, work)
        fits = self.ended[before] <= work.start[behind]
        self.edges.add(EdgeKind.EVENT, start[before[fits]] + 1, start[behind[fits]], 0)
        launched = np.flatnonzero(work.launch >= 0)
        launched = launched[timeline.begin[work.launch[launched]] >= 0]
        call = self._node_of(timeline.begin[work.launch[launched]])
        delay = work.start[launched] - self.time[call]
        launched, call, delay = (one[delay >= 0] for one in (launched, call, delay))
        self.latency = self._find_latency(launched, delay)
        weight = np.minimum(delay, self.latency)
        self.edges.add(EdgeKind.LAUNCH, call, start[launched], weight)

    def _find_latency(self, launched: Rows, delay: Rows) -> int:
        """Return how long a launch takes to reach a stream that has nothing to do, in ns."""
        work = self.work
        before = np.maximum(launched - 1, 0)
        is_first = (launched == 0) | (work.stream[before] != work.stream[launched])
        is_free = is_first | (work.end[before] <= work.given_ns[launched])
        chosen = delay[is_free] if is_free.any() else delay[:0]
        # Some of those will have waited for another stream, which cannot be seen.
        return int(np.quantile(chosen, 0.25, method="lower")) if len(chosen) else 0

    def _infer(self) -> None:
        """Let work wait for other streams where nothing else tells why it began when it did."""
        work = self.work
        if not len(work):
            return
        src, dst, weight, _ = self.edges.join()
        offset = 1 + len(self.joints)
        reached = np.full(len(self.time), self.time[0])
        is_known = self.time[src] <= self.time[dst]
        np.maximum.at(reached, dst[is_known], (self.time[src] + weight)[is_known])
        earliest = reached[offset::2]
        lasting = np.flatnonzero(work.end > work.start)
        device = work.device[work.stream]
        for one in np.unique(device[device >= 0]).tolist():
            mine = np.flatnonzero((device == one) & (work.start > earliest))
            others = lasting[device[lasting] == one]
            others = others[np.argsort(self.ended[others], kind="stable")]
            place = np.searchsorted(self.ended[others], work.start[mine], side="right") - 1
            mine, place = mine[place >= 0], place[place >= 0]
            before = others[place]
            ended = self.ended[before]
            fits = (ended > earliest[mine]) & (work.start[mine] - ended <= _WAKE_NS)
            # A launch that is as slow again as others explains it as well.
            fits &= work.start[mine] - work.given_ns[mine] > 2 * self.latency
            fits &= work.stream[before] != work.stream[mine]
            src = self._start_of(before[fits]) + 1
            self.edges.add(EdgeKind.INFERRED, src, self._start_of(mine[fits]), 0)


def _close(
    time: Rows, src: Rows, dst: Rows, weight: Rows, kind: NDArray[np.uint8]
) -> tuple[Rows, Rows, Rows, NDArray[np.uint8]]:
    """Drop edges that go back in time, join nodes without any to the first, and order the rest."""
    forward = src < dst
    src, dst, weight, kind = src[forward], dst[forward], weight[forward], kind[forward]
    count = len(time)
    lonely = np.flatnonzero(np.bincount(dst, minlength=count)[1:count] == 0) + 1
    src = np.concatenate([src, np.zeros(len(lonely), dtype=np.int64)])
    dst = np.concatenate([dst, lonely])
    weight = np.concatenate([weight, time[lonely] - time[0]])
    kind = np.concatenate([kind, np.full(len(lonely), EdgeKind.SOURCE, dtype=np.uint8)])
    order = np.argsort(dst * len(EdgeKind) + kind, kind="stable")
    return src[order], dst[order], weight[order], kind[order]


def _find_binding(time: Rows, src: Rows, weight: Rows, first: Rows) -> Rows:
    """Return the first of the edges into each node that come latest; node 0 has none."""
    binding = np.full(len(time), -1, dtype=np.int64)
    if len(src):
        reached = time[src] + weight
        latest = np.maximum.reduceat(reached, first[1:-1])
        is_latest = reached == np.repeat(latest, np.diff(first[1:]))
        place = np.where(is_latest, np.arange(len(src)), len(src))
        binding[1:] = np.minimum.reduceat(place, first[1:-1])
    return binding


def _fill_slack(time: Rows, src: Rows, weight: Rows, first: Rows) -> Rows:
    """Add what no edge explains to the one that comes nearest."""
    binding = _find_binding(time, src, weight, first)[1:]
    filled = weight.copy()
    filled[binding] += time[1:] - (time[src] + weight)[binding]
    return filled
