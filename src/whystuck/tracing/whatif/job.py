"""The graphs of all ranks of a job, joined at the collectives in which ranks wait for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table
from whystuck.evidence.traces.tables import RankTables
from whystuck.tracing.collectives.clocks import Clocks, estimate_clocks
from whystuck.tracing.collectives.matched import GroupCalls, Matching
from whystuck.tracing.collectives.matching import match_calls
from whystuck.tracing.collectives.rank_calls import RankCalls
from whystuck.tracing.critical.calls import find_calls
from whystuck.tracing.whatif.edges import CALLS, EDGES, ENDS, PARTS
from whystuck.tracing.whatif.replay import Meeting, RankGraph, Replay

Rows = NDArray[Any]


@dataclass(frozen=True)
class RankParts:
    """What levers could take from the edges of a rank, and of which group its communication is."""

    parts: Mapping[str, tuple[Rows, Rows]]
    groups: Mapping[int, frozenset[str]]


@dataclass(frozen=True)
class Job:
    """What is needed to replay a job."""

    replay: Replay
    parts: Sequence[RankParts]

    @property
    def measured_ns(self) -> int:
        """The time from the first event of a rank to the last one of any, on one clock."""
        return max((graph.end_ns for graph in self.replay.graphs), default=0)


def join_ranks(ranks: Sequence[RankTables]) -> Job:
    """Join the graphs of ranks.

    Args:
        ranks: Those with the tables of what-if questions; others are passed over.
    """
    ranks = [one for one in ranks if len(one.tables.get(ENDS, Table()))]
    matching = match_calls(ranks)
    clocks = estimate_clocks(matching)
    place = {one.header.rank: number for number, one in enumerate(matching.ranks)}
    starts = [_start_of(one, matching, clocks, place.get(one.header.rank)) for one in ranks]
    begin = min(starts, default=0)
    graphs = [_make_graph(one, start - begin) for one, start in zip(ranks, starts, strict=True)]
    mine = {one.header.rank: number for number, one in enumerate(ranks)}
    known = {one.header.rank: one for one in matching.ranks}
    edges = [_join_calls(one, known.get(one.header.rank)) for one in ranks]
    meetings = []
    for group in matching.groups:
        numbers = [mine[matching.ranks[rank].header.rank] for rank in group.rank.tolist()]
        meetings += _list_meetings(matching, clocks, group, (numbers, edges))
    parts = [
        _take_parts(one, found, known.get(one.header.rank))
        for one, found in zip(ranks, edges, strict=True)
    ]
    return Job(Replay(graphs, meetings), parts)


def _start_of(one: RankTables, matching: Matching, clocks: Clocks, place: int | None) -> int:
    """Return when the first event of a rank was, on the clock of the job."""
    start = int(one.tables[ENDS]["start_ns"][0]) + one.header.base_ns - matching.zero_ns
    if place is None:
        return start
    start -= round(float(clocks.offset_ns[place]))
    return start - round(float(clocks.drift[place]) * (start - clocks.middle_ns))


def _make_graph(one: RankTables, offset: int) -> RankGraph:
    edges = one.tables[EDGES]
    (row,) = list(one.tables[ENDS].take(slice(0, 1)).rows())
    _, nodes, start, end, steps = row
    return RankGraph(
        rank=one.header.rank,
        nodes=nodes,
        src=edges["src"],
        dst=edges["dst"],
        weight=edges["weight_ns"],
        kind=edges["kind"],
        is_comm=edges["is_comm"],
        offset_ns=offset,
        end_ns=offset + end - start,
        steps=steps,
    )


def _join_calls(one: RankTables, known: RankCalls | None) -> Rows:
    """Return the edge of each collective of a rank, -1 for those outside of the window."""
    calls = one.tables[CALLS]
    if known is None or not len(known):
        return np.empty(0, dtype=np.int64)
    place = find_calls(
        calls.columns, {name: known.columns[name] for name in ("start_ns", "end_ns")}
    )
    return np.where(place >= 0, calls["edge"][place] if len(calls) else -1, -1)


def _list_meetings(
    matching: Matching, clocks: Clocks, group: GroupCalls, where: tuple[list[int], list[Rows]]
) -> list[Meeting]:
    numbers, edges = where
    start = clocks.align(matching, group, "start_ns")
    end = clocks.align(matching, group, "end_ns")
    edge = np.full(group.rows.shape, -1, dtype=np.int64)
    for turn, number in enumerate(numbers):
        rows = group.rows[turn]
        edge[turn] = np.where(rows >= 0, edges[number][rows] if len(edges[number]) else -1, -1)
    is_there = edge >= 0
    start, end = np.where(is_there, start, -np.inf), np.where(is_there, end, -np.inf)
    latest = start.max(axis=0, initial=-np.inf)
    made = []
    for one in np.flatnonzero(matching.meets(group) & (is_there.sum(axis=0) > 1)).tolist():
        turns = np.flatnonzero(is_there[:, one])
        rest = np.maximum(np.rint(end[turns, one] - latest[one]), 0).astype(np.int64)
        made.append(
            Meeting(
                group.name,
                tuple(numbers[turn] for turn in turns.tolist()),
                tuple(edge[turns, one].tolist()),
                tuple(rest.tolist()),
            )
        )
    return made


def _take_parts(one: RankTables, edges: Rows, known: RankCalls | None) -> RankParts:
    table = one.tables.get(PARTS, Table())
    parts = {}
    if len(table):
        names, number = np.unique(table["lever"].astype(str), return_inverse=True)
        for place, name in enumerate(names.tolist()):
            mine = np.flatnonzero(number == place)
            parts[name] = table["edge"][mine], table["part_ns"][mine]
    groups: dict[int, frozenset[str]] = {}
    for row, edge in enumerate(edges.tolist()):
        if edge >= 0 and known is not None:
            form = known.groups[int(known.columns["group"][row])]
            groups[edge] = frozenset({form.name, form.desc})
    return RankParts(parts, groups)
