"""Communication behind compute."""

from __future__ import annotations

import math

from tests.tracing.data import make_event, make_trace

from whystuck.evidence.table import Table
from whystuck.evidence.traces.events import Trace
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.collectives.overlap import METRIC
from whystuck.tracing.view import TraceView


def measure(trace: Trace) -> Table:
    return METRIC.measure(TraceView(trace), TraceOptions())


def test_each_device_has_its_own_overlap() -> None:
    events = [
        make_event("kernel", "gemm", 0, 10, device=0, stream=7),
        make_event("kernel", "ncclDevKernel_AllReduce", 4, 12, device=0, stream=8),
        make_event("kernel", "ncclDevKernel_AllGather", 6, 2, device=0, stream=9),
        make_event("kernel", "gemm", 4, 12, device=1, stream=7),
    ]

    first, second = measure(make_trace(events, distributedInfo={"rank": 2})).rows()

    assert first == (2, 0, 12_000, 6_000, 50.0)
    assert second[:4] == (2, 1, 0, 0)
    assert math.isnan(second[4])


def test_no_device_work_gives_no_rows() -> None:
    table = measure(make_trace([make_event("cpu_op", "aten::add", 0, 1)]))

    assert len(table) == 0
    assert tuple(table.columns) == METRIC.columns
