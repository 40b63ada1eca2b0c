"""Replays the graphs of all ranks: a collective goes on when the last of its ranks has come."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]


@dataclass(frozen=True)
class RankGraph:
    """The graph of a rank; its edges are in the order of the nodes into which they go.

    ``offset_ns`` is when its first node is, on the clock of the job; ``end_ns`` is its last one as
    it was measured.
    """

    rank: int
    nodes: int
    src: Rows
    dst: Rows
    weight: Rows
    kind: Rows
    is_comm: NDArray[np.bool_]
    offset_ns: int = 0
    end_ns: int = 0
    steps: int = 0


@dataclass(frozen=True)
class Meeting:
    """A collective in which each rank waited for all others.

    ``ranks`` are positions in the list of graphs, ``edges`` the edge of each that it is, and
    ``transfer_ns`` what each still needed when the last one had come.
    """

    group: str
    ranks: tuple[int, ...]
    edges: tuple[int, ...]
    transfer_ns: tuple[int, ...]


@dataclass
class _Rank:
    """How far the replay of a rank has come."""

    src: list[int]
    dst: list[int]
    weight: list[int]
    length: list[int]
    # Edges before which something is to be done: (edge, 0 to tell or 1 to meet, meeting, turn).
    stops: list[tuple[int, int, int, int]]
    edge: int = 0
    stop: int = 0
    waits: bool = False

    def run_to(self, end: int) -> None:
        """Take the edges before one into account."""
        length, src, weight = self.length, self.src, self.weight
        begin = self.edge
        for one, into, own in zip(
            src[begin:end], self.dst[begin:end], weight[begin:end], strict=True
        ):
            reached = length[one] + own
            length[into] = max(length[into], reached)
        self.edge = max(end, begin)


@dataclass
class Replay:
    """The graphs of a job and its collectives.

    ``broken`` counts collectives of which ranks had other orders than in the trace; they are then
    left without waiting.
    """

    graphs: Sequence[RankGraph]
    meetings: Sequence[Meeting]
    broken: int = 0
    _plain: list[_Rank] = field(default_factory=list)

    def __post_init__(self) -> None:
        stops: list[list[tuple[int, int, int, int]]] = [[] for _ in self.graphs]
        firsts = [np.searchsorted(one.dst, one.src + 1) for one in self.graphs]
        for number, meeting in enumerate(self.meetings):
            for turn, (rank, edge) in enumerate(zip(meeting.ranks, meeting.edges, strict=True)):
                # A rank has come as soon as all edges into the node are known.
                stops[rank].append((int(firsts[rank][edge]), 0, number, turn))
                stops[rank].append((edge, 1, number, turn))
        for graph, own in zip(self.graphs, stops, strict=True):
            src, dst = graph.src.tolist(), graph.dst.tolist()
            self._plain.append(_Rank(src, dst, [], [], sorted(own)))

    def run(self, weights: Sequence[Rows], transfers: Sequence[Sequence[int]]) -> list[int]:
        """Replay with other weights.

        Args:
            weights: Those of the edges of each graph, in ns.
            transfers: Those of each meeting, in the order of its ranks.

        Returns:
            When the last node of each rank is, on the clock of the job.
        """
        self.broken = 0
        ranks = [
            _Rank(one.src, one.dst, weight.tolist(), [graph.offset_ns] * graph.nodes, one.stops)
            for one, graph, weight in zip(self._plain, self.graphs, weights, strict=True)
        ]
        latest = [0] * len(self.meetings)
        missing = [len(one.ranks) for one in self.meetings]
        ready = deque(range(len(ranks)))
        while True:
            while ready:
                at = ready.popleft()
                for met in self._advance(ranks[at], latest, missing, transfers):
                    ready += self._release(ranks, met, at)
            stuck = [rank.stops[rank.stop][2] for rank in ranks if rank.waits]
            if not stuck:
                return [max(rank.length, default=0) for rank in ranks]
            self.broken += 1
            met = min(stuck)
            missing[met] = 0
            ready += self._release(ranks, met, -1)

    def _advance(
        self,
        rank: _Rank,
        latest: list[int],
        missing: list[int],
        transfers: Sequence[Sequence[int]],
    ) -> list[int]:
        """Go on until a rank has to wait; return the meetings to which it came as the last."""
        complete = []
        while rank.stop < len(rank.stops):
            edge, is_meeting, number, turn = rank.stops[rank.stop]
            rank.run_to(edge)
            if not is_meeting:
                came = self.meetings[number].edges[turn]
                latest[number] = max(latest[number], rank.length[rank.src[came]])
                missing[number] -= 1
                if missing[number] == 0:
                    complete.append(number)
            elif missing[number] > 0:
                rank.waits = True
                return complete
            else:
                into = rank.dst[edge]
                reached = latest[number] + transfers[number][turn]
                rank.length[into] = max(rank.length[into], reached)
                rank.edge = max(rank.edge, edge + 1)
            rank.stop += 1
        rank.run_to(len(rank.src))
        return complete

    def _release(self, ranks: list[_Rank], met: int, but: int) -> list[int]:
        freed = []
        for one in self.meetings[met].ranks:
            rank = ranks[one]
            if one != but and rank.waits and rank.stops[rank.stop][2] == met:
                rank.waits = False
                freed.append(one)
        return freed
