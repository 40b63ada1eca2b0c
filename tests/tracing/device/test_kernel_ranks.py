"""The same kernels on all ranks."""

from __future__ import annotations

import math
import statistics

from tests.tracing.data import make_event, make_trace

from whystuck.evidence.table import Table
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankTables
from whystuck.tracing.device.kernel_ranks import METRIC
from whystuck.tracing.reduce import measure_rank, reduce_ranks


def make_rank(rank: int, *kernels: tuple[str, int]) -> RankTables:
    events = [
        make_event("kernel", name, 100 * number, us, device=0, stream=7)
        for number, (name, us) in enumerate(kernels)
    ]
    return measure_rank(make_trace(events, distributedInfo={"rank": rank}), TraceOptions())


def measure(*ranks: RankTables) -> Table:
    return reduce_ranks(ranks, TraceOptions()).get("kernel_ranks")


def test_the_slowest_and_the_fastest_rank_of_each_kernel() -> None:
    table = measure(
        make_rank(0, ("gemm", 10), ("gemm", 20)),
        make_rank(1, ("gemm", 30), ("relu", 1)),
        make_rank(2, ("gemm", 15)),
    )

    gemm, relu = (dict(zip(table.columns, row, strict=True)) for row in table.rows())

    assert gemm == {
        "class": "compute",
        "name": "gemm",
        "ranks": 3,
        "count": 4,
        "sum_ns": 75_000,
        "mean_ns": 20_000,
        "std_ns": statistics.stdev([15_000, 30_000, 15_000]),
        "min_rank": 0,
        "min_mean_ns": 15_000,
        "max_rank": 1,
        "max_mean_ns": 30_000,
        "spread": 0.75,
    }
    assert (relu["name"], relu["ranks"], relu["min_rank"], relu["spread"]) == ("relu", 1, 1, 0.0)
    assert math.isnan(relu["std_ns"])


def test_ranks_without_device_work_give_no_rows() -> None:
    assert len(measure(make_rank(0), make_rank(1))) == 0
    assert len(METRIC.measure([], TraceOptions())["kernel_ranks"]) == 0
