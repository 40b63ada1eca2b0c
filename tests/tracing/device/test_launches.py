"""Launches, and how long work waited after them."""

from __future__ import annotations

from tests.tracing.data import make_event, make_trace

from whystuck.evidence.table import Table
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.device.launches import METRIC, SUMMARY_METRIC
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

EVENTS = [
    make_event("cuda_runtime", "cudaGraphLaunch", 30, 5, correlation=3),
    make_event("cuda_runtime", "cudaLaunchKernel", 0, 5, correlation=1),
    make_event("cuda_driver", "cuLaunchKernelEx", 10, 5, correlation=2),
    make_event("hip_runtime", "hipMemcpyWithStream", 200, 40, correlation=4),
    make_event("cuda_runtime", "cudaStreamSynchronize", 250, 40, correlation=5),
    make_event("kernel", "a", 3, 10, correlation=1, device=0, stream=7),
    make_event("kernel", "b", 25, 10, correlation=2, device=0, stream=7),
    make_event("kernel", "d", 160, 1, correlation=3, device=0, stream=7),
    make_event("kernel", "c", 150, 2, correlation=3, device=0, stream=8),
    make_event("gpu_memcpy", "Memcpy HtoD", 210, 20, correlation=4, device=0, stream=7),
    make_event("kernel", "e", 300, 20, correlation=77, device=0, stream=7),
]


def measure(metric: Metric) -> Table:
    trace = make_trace(EVENTS, distributedInfo={"rank": 1})
    return metric.measure(TraceView(trace), TraceOptions())


def test_every_piece_of_work_with_a_launch_has_a_row() -> None:
    assert list(measure(METRIC).rows()) == [
        (1, 1, "cudaLaunchKernel", 5_000, 10_000, 0),
        (1, 2, "cuLaunchKernelEx", 5_000, 10_000, 10_000),
        (1, 3, "cudaGraphLaunch", 5_000, 2_000, 115_000),
        (1, 3, "cudaGraphLaunch", 5_000, 1_000, 125_000),
        (1, 4, "hipMemcpyWithStream", 40_000, 20_000, 0),
    ]


def test_a_graph_is_one_launch_in_the_summary() -> None:
    rows = {row[1]: row[2:] for row in measure(SUMMARY_METRIC).rows()}

    assert rows["cudaGraphLaunch"] == (1, 5_000, 3_000, 115_000, 115_000, 1, 1)
    assert rows["cudaLaunchKernel"] == (1, 5_000, 10_000, 0, 0, 0, 0)
    assert next(iter(rows)) == "hipMemcpyWithStream"


def test_no_device_work_gives_no_rows() -> None:
    for metric in (METRIC, SUMMARY_METRIC):
        table = metric.measure(TraceView(make_trace([])), TraceOptions())
        assert len(table) == 0
        assert tuple(table.columns) == metric.columns
