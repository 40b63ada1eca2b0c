"""The graph of a rank as tables, with what each lever would take from its edges."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.events import Category
from whystuck.evidence.traces.options import Lever, TraceOptions
from whystuck.tracing.critical.graph import PathGraph
from whystuck.tracing.critical.kinds import EdgeKind, PathKind
from whystuck.tracing.critical.tables import view_graph
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

Rows = NDArray[Any]
Flags = NDArray[np.bool_]

EDGES, CALLS, ENDS, PARTS = "whatif_edges", "whatif_calls", "whatif_ends", "whatif_parts"
_EDGES = ("rank", "src", "dst", "weight_ns", "kind", "is_comm")
_CALLS = ("rank", "edge", "device", "stream", "start_ns", "end_ns")
_ENDS = ("rank", "nodes", "start_ns", "end_ns", "steps")
_PARTS = ("rank", "lever", "edge", "part_ns")

_WORK_KINDS = {
    "compute": PathKind.COMPUTE,
    "memory": PathKind.MEMORY,
    "comm": PathKind.COMM,
}
_HOST_KINDS = {"host": PathKind.HOST, "comm": PathKind.COMM, "data_loading": PathKind.DATA_LOADING}
CLASSES = ("host", "launch", "compute", "memory", "comm")
# Of how many kernels and ops, those that take most time, it is asked what they would gain.
_NAMES = 20


def measure_edges(view: TraceView, options: TraceOptions) -> Table:
    """List the edges of the graph of a rank, by the node into which they go.

    ``kind`` is an `EdgeKind`; ``is_comm`` tells device work that communicates.
    """
    del options
    graph = view_graph(view)
    return Table(
        {
            "rank": view.rank_column(len(graph.src)),
            "src": graph.src,
            "dst": graph.dst,
            "weight_ns": graph.weight,
            "kind": graph.kind.astype(np.int64),
            "is_comm": _work_of(graph) == PathKind.COMM,
        }
    )


def measure_calls(view: TraceView, options: TraceOptions) -> Table:
    """List the edges that are communication of a device, and when it ran."""
    del options
    graph = view_graph(view)
    edge = np.flatnonzero(_work_of(graph) == PathKind.COMM)
    piece = graph.piece[graph.dst[edge]]
    row = graph.work.row[piece]
    return Table(
        {
            "rank": view.rank_column(len(edge)),
            "edge": edge,
            "device": view.events.device[row].astype(np.int64),
            "stream": view.events.stream[row].astype(np.int64),
            "start_ns": graph.work.start[piece],
            "end_ns": graph.work.end[piece],
        }
    )


def measure_ends(view: TraceView, options: TraceOptions) -> Table:
    """Tell how many nodes and steps there are, and from when to when."""
    del options
    graph = view_graph(view)
    starts = view.steps[1]
    steps = len(starts) if view.cut_ns is None else int((starts < view.cut_ns).sum())
    values = (view.trace.rank, len(graph), int(graph.time[0]), int(graph.time[-1]), steps)
    return Table({name: np.array([value]) for name, value in zip(_ENDS, values, strict=True)})


def measure_parts(view: TraceView, options: TraceOptions) -> Table:
    """Tell for each lever how much of each edge it could take away."""
    graph = view_graph(view)
    finder = _Finder(graph)
    levers = options.levers or tuple(_list_common(graph))
    names, edges, parts = [], [], []
    for lever in levers:
        part = finder.find(lever)
        edge = np.flatnonzero(part)
        names.append(np.full(len(edge), lever.name, dtype=object))
        edges.append(edge)
        parts.append(part[edge])
    edge = np.concatenate([np.empty(0, dtype=np.int64), *edges])
    return Table(
        {
            "rank": view.rank_column(len(edge)),
            "lever": np.concatenate([text_column(()), *names]),
            "edge": edge,
            "part_ns": np.concatenate([np.empty(0, dtype=np.int64), *parts]),
        }
    )


def _work_of(graph: PathGraph) -> Rows:
    """Return what the device work of each edge is for, as a `PathKind`; -1 for other edges."""
    is_work = graph.kind == EdgeKind.WORK
    piece = graph.piece[graph.dst]
    found = np.full(len(graph.src), -1, dtype=np.int64)
    found[is_work] = graph.work.kind[piece[is_work]]
    return found


def _list_common(graph: PathGraph) -> Iterator[Lever]:
    """Yield what is asked when the user asks nothing: classes, input, and what takes most time."""
    yield Lever(name="all of its own time", share=1)
    for name in CLASSES:
        yield Lever(name=name, share=1, classes=(name,))
    yield Lever(name="input", share=1, is_input=True)
    view, work = graph.view, graph.work
    names = view.trace.names
    own = work.kind != PathKind.COMM
    sums = np.bincount(
        view.events.name[work.row[own]], (work.end - work.start)[own], minlength=len(names)
    )
    for place in np.argsort(-sums, kind="stable")[:_NAMES].tolist():
        if sums[place] > 0:
            yield Lever(name=f"kernel {names[place]}", share=1, kernel=_exactly(names[place]))
    rows = view.host_rows
    rows = rows[view.events.category[rows] == Category.CPU_OP]
    sums = np.bincount(view.events.name[rows], view.events.duration_ns[rows], minlength=len(names))
    for place in np.argsort(-sums, kind="stable")[:_NAMES].tolist():
        if sums[place] > 0:
            yield Lever(name=f"op {names[place]}", share=1, op=_exactly(names[place]))


def _exactly(name: str) -> str:
    return rf"\A{re.escape(name)}\Z"


class _Finder:
    """Finds what a lever could take from each edge of a graph, in ns."""

    def __init__(self, graph: PathGraph) -> None:
        self.graph = graph
        self.work = _work_of(graph)
        timeline = graph.timeline
        self.length = np.zeros(len(timeline), dtype=np.int64)
        if len(timeline):
            same = np.diff(timeline.thread) == 0
            self.length[:-1] = np.where(same, np.diff(timeline.time), 0)

    def find(self, lever: Lever) -> Rows:
        """Return the part of each edge that a lever is about."""
        graph = self.graph
        kind, weight = graph.kind, graph.weight
        if lever.is_all:
            own = np.isin(kind, (EdgeKind.CHAIN, EdgeKind.HANDOVER, EdgeKind.LAUNCH))
            own |= (self.work >= 0) & (self.work != PathKind.COMM)
            return np.where(own, weight, 0)
        wanted = [_WORK_KINDS[one] for one in lever.classes if one in _WORK_KINDS]
        chosen = np.isin(self.work, wanted)
        if lever.links:
            chosen |= self.work == PathKind.COMM
        if "launch" in lever.classes:
            chosen |= kind == EdgeKind.LAUNCH
        bounds = self._choose_bounds(lever)
        if lever.kernel:
            chosen |= self._match_kernels(lever.kernel)
        if lever.op:
            inside = self._match_ops(lever.op)
            bounds = inside if bounds is None else bounds | inside
            chosen |= self._match_launched(inside)
        found = np.where(chosen, weight, 0)
        return found if bounds is None else np.maximum(found, self._take_host(bounds))

    def _choose_bounds(self, lever: Lever) -> Flags | None:
        kinds = [_HOST_KINDS[one] for one in lever.classes if one in _HOST_KINDS]
        if lever.is_input:
            kinds.append(PathKind.DATA_LOADING)
        return np.isin(self.graph.timeline.kind, kinds) if kinds else None

    def _match_names(self, pattern: str) -> Flags:
        found = re.compile(pattern).search
        names = self.graph.view.trace.names
        hits = (found(name) is not None for name in names)
        return np.fromiter(hits, np.bool_, count=len(names))

    def _match_kernels(self, pattern: str) -> Flags:
        graph = self.graph
        is_meant = self._match_names(pattern)
        chosen = self.work >= 0
        piece = graph.piece[graph.dst[chosen]]
        chosen[chosen] = is_meant[graph.view.events.name[graph.work.row[piece]]]
        return np.asarray(chosen)

    def _match_ops(self, pattern: str) -> Flags:
        """Tell the bounds from which on an op of such a name runs."""
        graph = self.graph
        events = graph.view.events
        is_op = self._match_names(pattern)[events.name]
        is_op &= np.isin(events.category, (Category.CPU_OP, Category.USER_ANNOTATION))
        return graph.timeline.inside(is_op)

    def _match_launched(self, inside: Flags) -> Flags:
        graph = self.graph
        chosen = (self.work >= 0) & (self.work != PathKind.COMM)
        piece = graph.piece[graph.dst[chosen]]
        launch = graph.work.launch[piece]
        bound = np.where(launch >= 0, graph.timeline.begin[launch], -1)
        chosen[chosen] = (bound >= 0) & inside[bound] if len(inside) else False
        return np.asarray(chosen)

    def _take_host(self, bounds: Flags) -> Rows:
        """Return how much of the edges along threads lies behind some bounds."""
        graph = self.graph
        before = np.r_[0, np.cumsum(self.length * bounds)]
        along = graph.kind == EdgeKind.CHAIN
        src, dst = graph.src[along], graph.dst[along]
        part = before[graph.bound[dst]] - before[graph.bound[src]]
        gap = np.maximum(graph.time[dst] - graph.time[src], 1)
        # Of an edge in which the thread waited, the same share of the rest.
        part = np.rint(part * (graph.weight[along] / gap)).astype(np.int64)
        found = np.zeros(len(graph.src), dtype=np.int64)
        found[along] = part
        over = graph.kind == EdgeKind.HANDOVER
        src, dst = graph.src[over], graph.dst[over]
        # The time in which the main thread hands over is that before the bound of the other.
        is_meant = bounds[np.maximum(graph.bound[dst] - 1, 0)] & bounds[graph.bound[src]]
        found[over] = np.where(is_meant, graph.weight[over], 0)
        return found


def _metric(
    name: str, columns: Sequence[str], measure: Callable[[TraceView, TraceOptions], Table]
) -> Metric:
    return Metric(name, tuple(columns), measure, is_default=False)


METRICS = (
    _metric(EDGES, _EDGES, measure_edges),
    _metric(CALLS, _CALLS, measure_calls),
    _metric(ENDS, _ENDS, measure_ends),
    _metric(PARTS, _PARTS, measure_parts),
)
