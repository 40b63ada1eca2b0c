"""What a rank's part of a job's critical path needs: from each collective back to the one before.

The times of nodes are set by one edge each, so that all ways back form a tree. It is cut where a
collective ends: there the way goes on only if the rank did not wait for others.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.critical.graph import PathGraph
from whystuck.tracing.critical.kinds import PathKind
from whystuck.tracing.critical.tables import name_kinds, name_parts, view_graph
from whystuck.tracing.critical.walk import Segments, describe_edges, pick, view_whole
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

Rows = NDArray[Any]

NAME = "path_chains"
_FIRST = -(1 << 62)  # stands for the first node, at which all ways end
_COLUMNS = (
    "rank",
    "chain",
    "device",
    "stream",
    "call_start_ns",
    "call_end_ns",
    "parent",
    "from_end",
    "start_ns",
    "end_ns",
    "kind",
    "name",
)


@dataclass(frozen=True)
class _Chains:
    """Ways back: ``edges`` of all, in order of time in each; ``count`` how many each has.

    ``parent`` is the chain that one begins in, or, where ``from_end``, at the end of whose
    collective; -1 at the first node.
    """

    edges: Rows
    count: Rows
    parent: Rows
    from_end: NDArray[np.bool_]


def measure_chains(view: TraceView, options: TraceOptions) -> Table:
    """List the ways from each collective of a device back to the one before it, or to another way.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row a part of a way; neighbours of one kind are one part, named after its longest. Ways
        count from 0 in the order of the starts of collectives. The last one leads to the last
        event, and has no collective. A way of no length has a row of no length.
    """
    del options
    graph = view_graph(view)
    calls = np.sort(graph.piece_start[graph.work.kind == PathKind.COMM])
    chains = _walk(graph, calls)
    parts, edge = describe_edges(graph, chains.edges)
    chain = np.repeat(np.arange(len(chains.count)), chains.count)[edge]
    is_lasting = parts.end > parts.start
    parts, chain = parts.take(is_lasting), chain[is_lasting]
    parts, chain = _join_kinds(parts, chain)
    parts, chain = _add_empty(graph, np.r_[calls, len(graph) - 1], parts, chain)
    piece = np.r_[graph.piece[calls], -1][chain]
    row = pick(graph.work.row, piece)
    columns: dict[str, Rows] = {
        "rank": view.rank_column(len(chain)),
        "chain": chain,
        "parent": chains.parent[chain],
        "from_end": chains.from_end[chain],
        "start_ns": parts.start,
        "end_ns": parts.end,
        "kind": name_kinds(parts.kind),
        "name": name_parts(view, parts.name),
    }
    for name, column in (
        ("device", view.events.device),
        ("stream", view.events.stream),
        ("call_start_ns", view.events.start_ns),
        ("call_end_ns", view.end_ns),
    ):
        columns[name] = pick(column, row)
    return Table({name: columns[name] for name in _COLUMNS})


def _walk(graph: PathGraph, calls: Rows) -> _Chains:
    binding, before = view_whole(graph.binding), view_whole(graph.parent)
    nodes = [*calls.tolist(), *([len(graph) - 1] if len(graph) else [])]
    # The way that each node is on, -1 for none; -2 and below for the ends of collectives.
    on = np.full(len(graph), -1, dtype=np.int64)
    on[graph.piece_end[graph.piece[calls]]] = -2 - np.arange(len(calls))
    if len(graph):
        on[0] = _FIRST
    seen: Any = memoryview(on)  # type: ignore[arg-type]
    edges = array("q")
    counts, parents, from_end = [], [], []
    for chain, start in enumerate(nodes):
        node, way = start, array("q")
        while seen[node] == -1:
            seen[node] = chain
            way.append(binding[node])
            node = before[node]
        way.reverse()
        edges.extend(way)
        counts.append(len(way))
        met = seen[node]
        from_end.append(met < 0 and met != _FIRST)
        parents.append(-1 if met == _FIRST else -2 - met if met < 0 else met)
    return _Chains(
        np.array(edges, dtype=np.int64),
        np.array(counts, dtype=np.int64),
        np.array(parents, dtype=np.int64),
        np.array(from_end, dtype=np.bool_),
    )


def _join_kinds(parts: Segments, chain: Rows) -> tuple[Segments, Rows]:
    """Join neighbours of one kind; the longest of them gives the name."""
    if not len(chain):
        return parts, chain
    is_new = np.r_[True, (np.diff(chain) != 0) | (np.diff(parts.kind.astype(np.int64)) != 0)]
    first = np.flatnonzero(is_new)
    last = np.r_[first[1:] - 1, len(chain) - 1]
    group = np.cumsum(is_new) - 1
    longest = np.lexsort((parts.start - parts.end, group))[first]
    named = parts.take(longest)
    joined = Segments(
        parts.start[first],
        parts.end[last],
        parts.kind[first],
        named.name,
        named.row,
        named.bound,
        named.piece,
    )
    return joined, chain[first]


def _add_empty(
    graph: PathGraph, nodes: Rows, parts: Segments, chain: Rows
) -> tuple[Segments, Rows]:
    """Give ways without length a row, so that each is there."""
    if not len(graph.timeline) and not len(graph.work):
        return parts, chain
    empty = np.flatnonzero(np.bincount(chain, minlength=len(nodes))[: len(nodes)] == 0)
    if not len(empty):
        return parts, chain
    at = graph.time[nodes[empty]]
    unknown = np.full(len(empty), -1, dtype=np.int64)
    name = np.full(len(empty), len(graph.view.trace.names), dtype=np.int64)
    kind = np.full(len(empty), PathKind.UNKNOWN, dtype=np.uint8)
    every = Segments(
        np.r_[parts.start, at],
        np.r_[parts.end, at],
        np.r_[parts.kind, kind],
        np.r_[parts.name, name],
        np.r_[parts.row, unknown],
        np.r_[parts.bound, unknown],
        np.r_[parts.piece, unknown],
    )
    chain = np.r_[chain, empty]
    order = np.argsort(chain, kind="stable")
    return every.take(order), chain[order]


METRIC = Metric(NAME, _COLUMNS, measure_chains, is_default=False, is_per_event=True)
