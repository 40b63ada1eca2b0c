"""Traces of several ranks, real and made up, and what is made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from bench.rank_sets import Job, make_texts
from tests.tracing.data import read_real

from whystuck.evidence.table import Table
from whystuck.evidence.traces.events import Trace
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankHeader, RankTables, TraceSummary
from whystuck.parse.traces.reader import read_trace
from whystuck.tracing.collectives.calls import METRIC
from whystuck.tracing.collectives.matched_ops import CROSS_METRIC
from whystuck.tracing.collectives.rank_calls import CALLS
from whystuck.tracing.view import TraceView

OPTIONS = TraceOptions()


def read_injected(kind: str) -> list[Trace]:
    """Eight ranks of which rank 5 is late."""
    return [read_real(f"injected/{kind}_8rank_r5/rank{rank}.json.gz") for rank in range(8)]


def copy_rank(trace: Trace, ranks: int) -> list[Trace]:
    """A set in which all ranks do the same at the same time."""
    return [
        dataclasses.replace(trace, rank=rank, world_size=ranks, artifact=f"rank{rank}")
        for rank in range(ranks)
    ]


def shift_clocks(traces: Sequence[Trace], offsets_ns: Sequence[int]) -> list[Trace]:
    """Put the clocks of ranks forward."""
    return [
        dataclasses.replace(trace, base_ns=trace.base_ns + offset)
        for trace, offset in zip(traces, offsets_ns, strict=True)
    ]


def measure_calls(trace: Trace) -> RankTables:
    """The calls of a rank and nothing else."""
    header = RankHeader(
        artifact=trace.artifact,
        rank=trace.rank,
        world_size=trace.world_size,
        host=trace.host,
        base_ns=trace.base_ns,
        groups={group.name: list(group.ranks) for group in trace.groups},
    )
    return RankTables(header, {CALLS: METRIC.measure(TraceView(trace, OPTIONS), OPTIONS)})


def compare_tables(tables: Sequence[RankTables]) -> TraceSummary:
    """The tables over all ranks."""
    headers = tuple(one.header for one in tables)
    return TraceSummary(headers, CROSS_METRIC.measure(tables, OPTIONS))


def compare_ranks(traces: Sequence[Trace]) -> TraceSummary:
    """The tables over all ranks, from traces."""
    return compare_tables([measure_calls(trace) for trace in traces])


def simulate(job: Job) -> tuple[list[RankTables], dict[str, Any]]:
    """What the ranks of a made-up job measured, and what is true of it."""
    texts, truth = make_texts(job)
    traces = [read_trace([text], f"rank{rank}.json") for rank, text in enumerate(texts)]
    return [measure_calls(trace) for trace in traces], truth


def edit_calls(tables: RankTables, edit: Callable[[Table], Table]) -> RankTables:
    """The same rank with other calls."""
    return RankTables(tables.header, {CALLS: edit(tables.tables[CALLS])})


def drop_calls(*places: int) -> Callable[[Table], Table]:
    """Leave out calls by their positions in time, as a profiler that loses events."""
    return lambda table: table.take(np.delete(np.arange(len(table)), places))


def set_columns(columns: Mapping[str, Any]) -> Callable[[Table], Table]:
    """Give columns of all calls another value."""

    def change(table: Table) -> Table:
        changed = {name: table[name] for name in table.columns}
        for name, value in columns.items():
            changed[name] = np.full(len(table), value, dtype=table[name].dtype)
        return Table(changed)

    return change
