"""Made-up jobs: traces of ranks whose collectives can be matched, with clocks of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.tracing.data import make_event, make_trace

from whystuck.evidence.traces.events import Trace
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankTables, TraceSummary
from whystuck.tracing.reduce import measure_rank, reduce_ranks


def make_rank_trace(
    rank: int, events: Sequence[dict[str, Any]], world: int = 2, clock_us: float = 0
) -> Trace:
    """The trace of a rank; `clock_us` is how far its clock is ahead."""
    moved = [{**event, "ts": event["ts"] + clock_us} for event in events]
    return make_trace(
        moved,
        baseTimeNanoseconds=1_700_000_000_000_000_000,
        distributedInfo={"rank": rank, "world_size": world, "backend": "nccl"},
    )


def all_reduce(
    start: float, us: float, link: int, *, number: int, world: int = 2, stream: int = 9
) -> dict[str, Any]:
    """A collective that the trace numbers."""
    event = make_event(
        "kernel",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        start,
        us,
        device=0,
        stream=stream,
        correlation=link,
    )
    event["args"] |= {
        "Collective name": "allreduce",
        "Process Group Name": "0",
        "Process Group Ranks": str(list(range(world))),
        "Group size": world,
        "dtype": "Float",
        "In msg nelems": 1024,
        "Out msg nelems": 1024,
        "Seq": number,
    }
    return event


def make_late_job(
    works_us: Sequence[float],
    *,
    last_us: Sequence[float] | None = None,
    clocks: Sequence[float] = (),
) -> list[Trace]:
    """Ranks that compute for some time, all-reduce, and compute again.

    The work begins at 10 µs; the transfer takes 10 µs once the last rank has come.
    """
    world = len(works_us)
    last_us = last_us or [30] * world
    met = 10 + max(works_us)
    traces = []
    for rank, work in enumerate(works_us):
        events = [
            make_event("user_annotation", "ProfilerStep#1", 0, 8),
            make_event("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1),
            make_event("kernel", "gemm", 10, work, device=0, stream=7, correlation=1),
            make_event("cuda_runtime", "cudaLaunchKernel", 3, 1, correlation=2),
            all_reduce(10 + work, met + 10 - (10 + work), 2, number=1, world=world, stream=7),
            make_event("cuda_runtime", "cudaLaunchKernel", 5, 1, correlation=3),
            make_event(
                "kernel", "relu", met + 10, last_us[rank], device=0, stream=7, correlation=3
            ),
        ]
        clock = clocks[rank] if clocks else 0
        traces.append(make_rank_trace(rank, events, world, clock))
    return traces


def reduce_job(traces: Sequence[Trace], **keys: Any) -> TraceSummary:
    """Tables of a job, with those of its critical path."""
    options = TraceOptions(**{"tables": ("path_chains",), **keys})
    ranks: list[RankTables] = [measure_rank(trace, options) for trace in traces]
    return reduce_ranks(ranks, options)
