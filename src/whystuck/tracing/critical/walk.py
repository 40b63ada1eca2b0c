"""The longest path through a graph, and what lies on it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.critical.graph import PathGraph
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


def view_whole(column: Rows) -> Sequence[int]:
    """Return whole numbers as a sequence of Python's, which is faster to step through."""
    seen: Any = memoryview(np.ascontiguousarray(column))  # type: ignore[arg-type]
    return seen  # type: ignore[no-any-return]


def trace_back(graph: PathGraph, node: int) -> Rows:
    """Walk back over the edges that set the times of nodes.

    Args:
        graph: The graph of a rank.
        node: Where to begin.

    Returns:
        The edges, in order of time.
    """
    binding, parent = view_whole(graph.binding), view_whole(graph.parent)
    edges = array("q")
    while (edge := binding[node]) >= 0:
        edges.append(edge)
        node = parent[node]
    return np.frombuffer(edges, dtype=np.int64)[::-1] if edges else np.empty(0, dtype=np.int64)


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
    timeline, work = graph.timeline, graph.work
    bound = _find_bounds(graph, kind, src, dst, step)
    piece = np.where(bound >= 0, -1, graph.piece[dst])
    start, end = graph.time[src], graph.time[dst]
    row = np.full(len(kind), -1, dtype=np.int64)
    meaning = np.full(len(kind), PathKind.UNKNOWN, dtype=np.uint8)
    name = np.full(len(kind), len(graph.view.trace.names) + _NOTHING, dtype=np.int64)
    along = np.flatnonzero((kind == EdgeKind.CHAIN) | (kind == EdgeKind.HANDOVER))
    at = bound[along]
    row[along], meaning[along] = timeline.inner[at], timeline.kind[at]
    chain = np.flatnonzero(kind == EdgeKind.CHAIN)
    start[chain], end[chain] = timeline.time[bound[chain]], timeline.time[bound[chain] + 1]
    engine = chain[row[chain] < 0]
    engine = engine[np.isin(timeline.thread[bound[engine]], graph.backward)]
    meaning[engine] = PathKind.HOST
    name[engine] += _ENGINE
    sync = np.flatnonzero(kind == EdgeKind.SYNC)
    row[sync], meaning[sync] = timeline.inner[bound[sync]], PathKind.SYNC
    launch = np.flatnonzero(kind == EdgeKind.LAUNCH)
    row[launch], meaning[launch] = work.launch[piece[launch]], PathKind.LAUNCH
    own = np.flatnonzero(kind == EdgeKind.WORK)
    row[own], meaning[own] = work.row[piece[own]], work.kind[piece[own]]
    between = np.isin(kind, (EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.INFERRED))
    name[between] += _BETWEEN
    between &= end - start <= graph.view.options.idle_threshold_ns
    meaning[between] = PathKind.LAUNCH
    known = np.flatnonzero(row >= 0)
    name[known] = graph.view.events.name[row[known]]
    return Segments(start, end, meaning, name, row, bound, piece)


def _find_bounds(
    graph: PathGraph, kind: NDArray[np.uint8], src: Rows, dst: Rows, step: Rows
) -> Rows:
    """Return the bound at which each part on a thread begins, -1 for parts on streams."""
    bound = np.full(len(kind), -1, dtype=np.int64)
    chain = np.flatnonzero(kind == EdgeKind.CHAIN)
    bound[chain] = graph.bound[src[chain]] + step[chain]
    # The main thread was at work before it gave the work away, and since it got it back.
    handed = np.flatnonzero(kind == EdgeKind.HANDOVER)
    giver, taker = graph.bound[src[handed]], graph.bound[dst[handed]]
    is_given = np.isin(graph.timeline.thread[taker], graph.backward)
    bound[handed] = np.where(is_given, giver, taker - 1)
    sync = np.flatnonzero(kind == EdgeKind.SYNC)
    bound[sync] = graph.bound[dst[sync]] - 1
    return bound


def pick(column: NDArray[Any], at: Rows, default: int = -1) -> Rows:
    """Return values of a column, a default where the position is -1."""
    if not len(column):
        return np.full(len(at), default, dtype=np.int64)
    return np.where(at >= 0, column[np.maximum(at, 0)], default).astype(np.int64)


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
