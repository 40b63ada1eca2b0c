"""The critical path of a rank as tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Column, Table, text_column, whole_column
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.critical.graph import PathGraph, build_graph
from whystuck.tracing.critical.kinds import KIND_NAMES, PathKind
from whystuck.tracing.critical.walk import EXTRA_NAMES, Segments, expand, trace_back
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

_PATH = ("rank", "start_ns", "end_ns", "kind", "name", "place")
_SUMMARY = ("rank", "kind", "sum_ns", "share")


def find_path(graph: PathGraph) -> Segments:
    """Return the parts of the critical path; their lengths add up to the time of the window."""
    return expand(graph, trace_back(graph, len(graph) - 1))


def name_kinds(kind: NDArray[np.uint8]) -> Column:
    """Return kinds as text."""
    names = np.array([KIND_NAMES[one] for one in PathKind], dtype=object)
    return names[kind]


def name_parts(view: TraceView, name: NDArray[np.int64]) -> Column:
    """Return the names of parts of a path as text."""
    return text_column((*view.trace.names, *EXTRA_NAMES))[name]


def measure_path(view: TraceView, options: TraceOptions) -> Table:
    """Find what the time between the first and the last event of a rank was spent on.

    From the last event it goes back, at each time to what was waited for: on a thread of the host,
    over a launch, along a stream, over a wait for another stream or for the device. Each part
    begins where the last one ended, so that all of them add up to the time of the window.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row a part, in order of time. ``place`` is the thread or the device and its stream.
    """
    del options
    graph = view_graph(view)
    parts = find_path(graph)
    return Table(
        {
            "rank": view.rank_column(len(parts)),
            "start_ns": parts.start,
            "end_ns": parts.end,
            "kind": name_kinds(parts.kind),
            "name": name_parts(view, parts.name),
            "place": _name_places(graph, parts),
        }
    )


def view_graph(view: TraceView) -> PathGraph:
    """Return the graph of a trace, built once."""
    graph = view.__dict__.get("_path_graph")
    if not isinstance(graph, PathGraph):
        graph = view.__dict__["_path_graph"] = build_graph(view)
    return graph


def _name_places(graph: PathGraph, parts: Segments) -> Column:
    timeline, work, events = graph.timeline, graph.work, graph.view.events
    first = np.unique(timeline.thread, return_index=True)[1]
    texts = [f"thread {tid}" for tid in events.tid[timeline.row[first]].tolist()]
    threads = len(texts)
    for key in work.stream_keys.tolist():
        device, stream = key >> 32, key & 0xFFFFFFFF
        texts.append(f"device {device} stream {stream}" if device >= 0 else f"thread {stream}")
    place = np.full(len(parts), len(texts), dtype=np.int64)
    on_thread, on_stream = parts.bound >= 0, parts.piece >= 0
    place[on_thread] = timeline.thread[parts.bound[on_thread]]
    place[on_stream] = threads + work.stream[parts.piece[on_stream]]
    return text_column([*texts, ""])[place]


def summarize_path(view: TraceView, options: TraceOptions) -> Table:
    """Add up the critical path by kind.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row for each kind that is on the path, the longest first; shares are of all of it.
    """
    del options
    parts = find_path(view_graph(view))
    sums = np.zeros(len(PathKind), dtype=np.int64)
    np.add.at(sums, parts.kind, parts.end - parts.start)
    kinds = np.argsort(-sums, kind="stable")
    kinds = kinds[sums[kinds] > 0]
    return Table(
        {
            "rank": view.rank_column(len(kinds)),
            "kind": name_kinds(kinds.astype(np.uint8)),
            "sum_ns": whole_column(sums[kinds].tolist()),
            "share": sums[kinds] / max(int(sums.sum()), 1),
        }
    )


# Graphs take time and memory of their own, so that they are made only where tables are wanted.
PATH = Metric("critical_path", _PATH, measure_path, is_default=False, is_per_event=True)
SUMMARY = Metric("critical_summary", _SUMMARY, summarize_path, is_default=False)
