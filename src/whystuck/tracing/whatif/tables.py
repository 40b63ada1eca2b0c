"""What-if questions over all ranks, answered as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, text_column, whole_column
from whystuck.evidence.traces.options import Lever, TraceOptions
from whystuck.evidence.traces.tables import RankTables
from whystuck.tracing.collectives.rank_calls import CALLS as COLLECTIVES
from whystuck.tracing.critical.chains import NAME as CHAINS
from whystuck.tracing.metric import CrossMetric
from whystuck.tracing.whatif.edges import CALLS, CLASSES, EDGES, ENDS, PARTS
from whystuck.tracing.whatif.job import Job, join_ranks
from whystuck.tracing.whatif.median import find_excess

Rows = NDArray[Any]

ANSWERS, REPLAY = "whatif", "whatif_replay"
# The tables of ranks that answers are made from, and those of the path that they are shown with.
TABLES = (EDGES, CALLS, ENDS, PARTS, COLLECTIVES, CHAINS)
_SHARES = (0.1, 1.0)
_MOST_NAMES = 5
_MOST_RANKS = 8
_OWN, _MEDIAN = "all of its own time", "as fast as the median of its peers"


def measure_levers(ranks: Sequence[RankTables], options: TraceOptions) -> Mapping[str, Table]:
    """Replay the job with each lever.

    Args:
        ranks: Their tables; those of what-if questions are only there when they are asked for.
        options: The levers; common ones when there are none.

    Returns:
        ``whatif`` with a row a question: how long the job would take, and what that gains, the
        largest first; ``whatif_replay`` with one row: how well a replay of what was gives what was.
    """
    if not any(ENDS in one.tables for one in ranks):
        return {}
    job = join_ranks(ranks)
    asker = _Asker(job)
    base = asker.replay(None)
    broken = job.replay.broken
    asked = options.levers or list(_list_common(job))
    rows = []
    for lever in asked:
        wall = asker.replay(lever)
        ranks_text = ",".join(str(rank) for rank in lever.ranks)
        rows.append((lever.name, lever.share, ranks_text, wall, base - wall))
    if not options.levers:
        rows += _ask_medians(job, asker, base)
    rows.sort(key=lambda row: -row[4])
    return {ANSWERS: _make_answers(rows, base), REPLAY: _make_replay(job, base, broken)}


class _Asker:
    """Replays a job with weights that levers have taken their part from."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.weights = [graph.weight for graph in job.replay.graphs]
        self.transfers = [meeting.transfer_ns for meeting in job.replay.meetings]

    def replay(self, lever: Lever | None) -> int:
        """Return how long the job takes with a lever, in ns."""
        if lever is None:
            return self.run(self.weights, self.transfers)
        taken = [self._take(number, lever) for number in range(len(self.weights))]
        weights = [
            weight - np.rint(lever.share * part).astype(np.int64)
            for weight, part in zip(self.weights, taken, strict=True)
        ]
        transfers = []
        for meeting, rests in zip(self.job.replay.meetings, self.transfers, strict=True):
            pairs = zip(meeting.ranks, meeting.edges, rests, strict=True)
            transfers.append(
                [
                    round(rest * (1 - lever.share)) if taken[rank][edge] > 0 else rest
                    for rank, edge, rest in pairs
                ]
            )
        return self.run(weights, transfers)

    def run(self, weights: Sequence[Rows], transfers: Sequence[Sequence[int]]) -> int:
        """Return when the last rank ends."""
        return max(self.job.replay.run(weights, transfers), default=0)

    def _take(self, number: int, lever: Lever) -> Rows:
        graph, parts = self.job.replay.graphs[number], self.job.parts[number]
        taken = np.zeros(len(graph.weight), dtype=np.int64)
        if lever.ranks and graph.rank not in lever.ranks:
            return taken
        # Answers of several levers share the part of what they are named after.
        if lever.name not in parts.parts:
            return taken
        edge, part = parts.parts[lever.name]
        taken[edge] = part
        if lever.links and "comm" not in lever.classes:
            others = [
                one
                for one in np.flatnonzero(graph.is_comm & (taken > 0)).tolist()
                if not parts.groups.get(one, frozenset()) & set(lever.links)
            ]
            taken[others] = 0
        return taken


def _list_common(job: Job) -> Iterable[Lever]:
    """List the questions that are asked when the user asks none."""
    sums: dict[str, int] = {}
    for one in job.parts:
        for name, (_, part) in one.parts.items():
            sums[name] = sums.get(name, 0) + int(part.sum())
    names = [name for name in (*CLASSES, "input") if sums.get(name)]
    for kind in ("kernel ", "op "):
        most = sorted((name for name in sums if name.startswith(kind)), key=lambda one: -sums[one])
        names += most[:_MOST_NAMES]
    for name in names:
        for share in _SHARES:
            classes = ("comm",) if name == "comm" else ()
            yield Lever(name=name, share=share, classes=classes)
    graphs = job.replay.graphs
    if len(graphs) > 1:
        for rank in [graph.rank for graph in graphs][:_MOST_RANKS]:
            yield Lever(name=_OWN, share=_SHARES[0], ranks=(rank,))


def _ask_medians(job: Job, asker: _Asker, base: int) -> list[tuple[str, float, str, int, int]]:
    """Ask what each rank would gain the job that did as its peers do."""
    excess = find_excess(job)
    sums = [int(one.sum()) for one in excess]
    rows = []
    for number in sorted(range(len(sums)), key=lambda one: -sums[one])[:_MOST_RANKS]:
        if sums[number] <= 0:
            continue
        weights = list(asker.weights)
        weights[number] = weights[number] - excess[number]
        wall = asker.run(weights, asker.transfers)
        rank = str(job.replay.graphs[number].rank)
        rows.append((_MEDIAN, 1.0, rank, wall, base - wall))
    return rows


def _make_answers(rows: Sequence[tuple[str, float, str, int, int]], base: int) -> Table:
    gains = [row[4] for row in rows]
    return Table(
        {
            "lever": text_column([row[0] for row in rows]),
            "faster": np.array([row[1] for row in rows], dtype=np.float64),
            "ranks": text_column([row[2] for row in rows]),
            "wall_ns": whole_column([row[3] for row in rows]),
            "gain_ns": whole_column(gains),
            "gain_share": np.array([gain / max(base, 1) for gain in gains], dtype=np.float64),
        }
    )


def _make_replay(job: Job, base: int, broken: int) -> Table:
    measured = job.measured_ns
    steps = max((graph.steps for graph in job.replay.graphs), default=0)
    return Table(
        {
            "ranks": whole_column([len(job.replay.graphs)]),
            "collectives": whole_column([len(job.replay.meetings)]),
            "broken": whole_column([broken]),
            "steps": whole_column([steps]),
            "measured_ns": whole_column([measured]),
            "replayed_ns": whole_column([base]),
            "error": np.array([base / measured - 1 if measured else 0.0]),
        }
    )


CROSS_METRIC = CrossMetric(
    names=(ANSWERS, REPLAY),
    needs=(EDGES, CALLS, ENDS, PARTS, COLLECTIVES),
    measure=measure_levers,
)
