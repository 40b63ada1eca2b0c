"""The longest path through a graph, and what lies on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.critical.graph import PathGraph
from whystuck.tracing.critical.host import find_backward_threads
from whystuck.tracing.critical.kinds import EdgeKind, PathKind

# Whole numbers: int64, or int32 where rows of the trace are meant.
Rows = NDArray[Any]

# Names of parts that are no event of the trace.
EXTRA_NAMES = ("", "between two kernels", "autograd engine")
_NOTHING, _BETWEEN, _ENGINE = range(len(EXTRA_NAMES))


def find_longest(count: int, src: Rows, dst: Rows, weight: Rows) -> tuple[Rows, Rows]:
    """Find the longest path to each node of a directed graph without cycles, in one pass.

    Args:
        count: How many nodes there are. Their numbers must be an order in which edges go forward.
        src: Where each edge begins; edges are in ascending order of ``dst``.
        dst: Where each edge ends.
        weight: Its length.

    Returns:
        The length of the longest path to each node, from wherever it begins (nodes without edges
        into them are at 0), and the last edge of that path: -1 where there is none, and of
        several the first.

    Raises:
        ValueError: An edge goes back, or the edges are not in order.
    """
    if len(src) and (not (src < dst).all() or (np.diff(dst) < 0).any()):
        raise ValueError("edges must go forward and be in the order of their ends")
    length, parent = [0] * count, [-1] * count
    last, best = -1, 0
    for edge, (begin, end, own) in enumerate(
        zip(src.tolist(), dst.tolist(), weight.tolist(), strict=True)
    ):
        reached = length[begin] + own
        if end != last or reached > best:
            last, best = end, reached
            length[end], parent[end] = reached, edge
    return np.array(length, dtype=np.int64), np.array(parent, dtype=np.int64)


@dataclass(frozen=True)
class Segments:
    """Parts of a path in order of time; each begins where the last one ended.

    ``kind`` is a `PathKind`. ``name`` indexes the names of the trace, with `EXTRA_NAMES` behind
    them. ``row`` is the event, -1 for none; ``bound`` the place in the host's timeline of parts on
    a thread, otherwise -1; ``piece`` that in the device work of parts on a stream.
    """

    start: Rows
    end: Rows
    kind: NDArray[np.uint8]
    name: Rows
    row: Rows
    bound: Rows
    piece: Rows

    def __len__(self) -> int:
        return len(self.start)

    def take(self, chosen: NDArray[np.bool_] | Rows) -> Segments:
        """Return some parts, by a mask or by positions."""
        return Segments(
            self.start[chosen],
            self.end[chosen],
            self.kind[chosen],
            self.name[chosen],
            self.row[chosen],
            self.bound[chosen],
            self.piece[chosen],
        )


def trace_back(graph: PathGraph, node: int, is_stop: NDArray[np.bool_] | None = None) -> Rows:
    """Walk back over the edges that set the times of nodes.

    Args:
        graph: The graph of a rank.
        node: Where to begin.
        is_stop: Nodes at which to end, other than ``node`` itself; the first node when left out.

    Returns:
        The edges, in order of time.
    """
    binding, parent = graph.binding, graph.parent
    edges = []
    while (edge := int(binding[node])) >= 0:
        edges.append(edge)
        node = int(parent[node])
        if is_stop is not None and is_stop[node]:
            break
    return np.array(edges[::-1], dtype=np.int64)


def expand(graph: PathGraph, edges: Rows) -> Segments:
    """Tell what happened on the edges of a path.

    Args:
        graph: The graph of a rank.
        edges: Edges of it, each beginning where the last one ended.

    Returns:
        Parts of some length; neighbours that differ in nothing are one.
    """
    made, _ = describe_edges(graph, edges)
    return _join_alike(graph, made.take(made.end > made.start))


def describe_edges(graph: PathGraph, edges: Rows) -> tuple[Segments, Rows]:
    """Tell what happened on edges, part by part.

    Args:
        graph: The graph of a rank.
        edges: Edges of it.

    Returns:
        Parts, some of no length, and for each its position in ``edges``.
    """
    kind = graph.kind[edges]
    src, dst = graph.src[edges], graph.dst[edges]
    is_chain = kind == EdgeKind.CHAIN
    counts = np.where(is_chain, graph.bound[dst] - graph.bound[src], 1)
    edge = np.repeat(np.arange(len(edges)), counts)
    step = np.arange(len(edge)) - np.repeat(np.cumsum(counts) - counts, counts)
    return _describe(graph, kind[edge], src[edge], dst[edge], step), edge


def _describe(
    graph: PathGraph, kind: NDArray[np.uint8], src: Rows, dst: Rows, step: Rows
) -> Segments:
    """Describe edges; of those along a thread one bound after the other."""
    timeline, work, events = graph.timeline, graph.work, graph.view.events
    names = len(graph.view.trace.names)
    bound = _find_bounds(graph, kind, src, dst, step)
    piece = np.where(bound >= 0, -1, graph.piece[dst])
    is_chain = kind == EdgeKind.CHAIN
    start = np.where(is_chain, pick(timeline.time, bound, 0), graph.time[src])
    end = np.where(is_chain, pick(timeline.time, bound + 1, 0), graph.time[dst])
    row = np.where(
        kind == EdgeKind.SYNC, pick(timeline.row, graph.bound[dst]), pick(timeline.inner, bound)
    )
    row = np.where(kind == EdgeKind.LAUNCH, pick(work.launch, piece), row)
    row = np.where(kind == EdgeKind.WORK, pick(work.row, piece), row)
    row = np.where(kind == EdgeKind.SOURCE, -1, row)
    meaning = pick(timeline.kind, bound, PathKind.UNKNOWN)
    meaning = np.where(kind == EdgeKind.SYNC, PathKind.SYNC, meaning)
    meaning = np.where(kind == EdgeKind.LAUNCH, PathKind.LAUNCH, meaning)
    meaning = np.where(kind == EdgeKind.WORK, pick(work.kind, piece), meaning)
    is_between = np.isin(kind, (EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.INFERRED))
    is_short = is_between & (end - start <= graph.view.options.idle_threshold_ns)
    meaning = np.where(is_short, PathKind.LAUNCH, meaning)
    extra = np.where(is_between, _BETWEEN, _NOTHING)
    backward = find_backward_threads(graph.view, timeline)
    is_engine = is_chain & (row < 0) & np.isin(pick(timeline.thread, bound), backward)
    meaning = np.where(is_engine, PathKind.HOST, meaning)
    extra = np.where(is_engine, _ENGINE, extra)
    name = np.where(row >= 0, pick(events.name, row), names + extra)
    return Segments(start, end, meaning.astype(np.uint8), name, row, bound, piece)


def pick(column: NDArray[np.generic], at: Rows, default: int = -1) -> Rows:
    """Return values of a column, a default where the position is -1 or past its end."""
    if not len(column):
        return np.full(len(at), default, dtype=np.int64)
    inside = (at >= 0) & (at < len(column))
    return np.where(inside, column[np.where(inside, at, 0)], default).astype(np.int64)


def _find_bounds(
    graph: PathGraph, kind: NDArray[np.uint8], src: Rows, dst: Rows, step: Rows
) -> Rows:
    """Return the bound at which each part on a thread begins, -1 for parts on streams."""
    bound = np.where(kind == EdgeKind.CHAIN, graph.bound[src] + step, -1)
    # The main thread was at work before it gave the work away, and since it got it back.
    backward = find_backward_threads(graph.view, graph.timeline)
    is_given = np.isin(pick(graph.timeline.thread, graph.bound[dst]), backward)
    handed = np.where(is_given, graph.bound[src], graph.bound[dst] - 1)
    bound = np.where(kind == EdgeKind.HANDOVER, handed, bound)
    return np.where(kind == EdgeKind.SYNC, graph.bound[dst] - 1, bound)


def _join_alike(graph: PathGraph, parts: Segments) -> Segments:
    if not len(parts):
        return parts
    thread = pick(graph.timeline.thread, parts.bound)
    is_new = np.zeros(len(parts), dtype=np.bool_)
    for column in (parts.kind, parts.name, thread, parts.piece):
        is_new[1:] |= np.diff(column.astype(np.int64)) != 0
    is_new[0] = True
    first = np.flatnonzero(is_new)
    last = np.r_[first[1:] - 1, len(parts) - 1]
    joined = parts.take(first)
    return Segments(
        joined.start, parts.end[last], joined.kind, joined.name, joined.row, joined.bound,
        joined.piece,
    )  # fmt: skip
