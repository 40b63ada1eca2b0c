"""What a rank takes longer than its peers do for the same: the work between two collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.critical.kinds import EdgeKind
from whystuck.tracing.whatif.job import Job
from whystuck.tracing.whatif.replay import RankGraph

Rows = NDArray[Any]

_LEAST_RANKS = 3
_CLASSES = 2  # host, device


def find_excess(job: Job) -> list[Rows]:
    """Find what each rank takes longer than the median of its peers.

    Between the launches of two collectives that all ranks have, the time on threads of the host and
    that of device work other than communication are compared. Ranks without the collectives that
    most have are left out.

    Args:
        job: The job.

    Returns:
        For each rank, how much of each edge is above the median, in ns; 0 without three ranks.
    """
    graphs = job.replay.graphs
    none = [np.zeros(len(graph.weight), dtype=np.int64) for graph in graphs]
    shared = _find_shared(job)
    alike = [one for one, meetings in enumerate(shared) if meetings and meetings == shared[0]]
    if len(alike) < _LEAST_RANKS:
        return none
    cells = {}
    count = len(shared[0])
    for one in alike:
        edges = [_edge_of(job, one, meeting) for meeting in shared[0]]
        cells[one] = _find_cells(graphs[one], edges)
    sums = np.stack(
        [
            np.bincount(cells[one] + 1, graphs[one].weight, minlength=_CLASSES * (count + 1) + 1)[
                1:
            ]
            for one in alike
        ]
    )
    median = np.median(sums, axis=0)
    for place, one in enumerate(alike):
        above = np.maximum(sums[place] - median, 0) / np.maximum(sums[place], 1)
        share = np.r_[above, 0][cells[one]]
        none[one] = np.rint(graphs[one].weight * share).astype(np.int64)
    return none


def _find_shared(job: Job) -> list[list[int]]:
    """List the collectives of each rank that all ranks take part in."""
    count = len(job.replay.graphs)
    whole = [
        number for number, meeting in enumerate(job.replay.meetings) if len(meeting.ranks) == count
    ]
    shared = []
    for one in range(count):
        order = sorted(whole, key=lambda meeting: _edge_of(job, one, meeting))
        shared.append(order)
    return shared


def _edge_of(job: Job, rank: int, meeting: int) -> int:
    one = job.replay.meetings[meeting]
    return one.edges[one.ranks.index(rank)]


def _find_cells(graph: RankGraph, edges: Sequence[int]) -> Rows:
    """Return the cell of each edge: after which collective's launch, and host or device; or -1."""
    launches = graph.kind == EdgeKind.LAUNCH
    caller = np.full(graph.nodes, -1, dtype=np.int64)
    caller[graph.dst[launches]] = graph.src[launches]
    # A node of the host is as late as itself, device work as late as its launch.
    calls = np.maximum.accumulate(caller[graph.src[np.asarray(edges)]])
    is_host = np.isin(graph.kind, (EdgeKind.CHAIN, EdgeKind.HANDOVER))
    is_work = (graph.kind == EdgeKind.WORK) & ~graph.is_comm
    at = np.where(is_host, graph.src, caller[graph.src])
    turn = np.searchsorted(calls, at, side="right")
    cell = _CLASSES * turn + is_work
    return np.where(is_host | (is_work & (at >= 0)), cell, -1)
