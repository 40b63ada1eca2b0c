"""Traces of several ranks, and what is made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tests.tracing.data import read_real

from whystuck.evidence.trace import Trace
from whystuck.evidence.trace_tables import RankTables, TraceSummary
from whystuck.tracing.collective_calls import METRIC
from whystuck.tracing.collectives import CROSS_METRIC
from whystuck.tracing.options import TraceOptions
from whystuck.tracing.reduce import measure_rank
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


def measure_calls(traces: Sequence[Trace]) -> list[RankTables]:
    """The calls of each rank and nothing else."""
    made = []
    for trace in traces:
        header = measure_rank(trace, OPTIONS).header
        calls = METRIC.measure(TraceView(trace, OPTIONS), OPTIONS)
        made.append(RankTables(header, {METRIC.name: calls}))
    return made


def compare_ranks(traces: Sequence[Trace]) -> TraceSummary:
    """The tables over all ranks."""
    tables = measure_calls(traces)
    return TraceSummary(tuple(one.header for one in tables), CROSS_METRIC.measure(tables, OPTIONS))
