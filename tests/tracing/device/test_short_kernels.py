"""Short kernels, and what lies before them."""

from __future__ import annotations

from tests.tracing.data import make_event, make_trace
from tests.tracing.measuring import measure_rows

from whystuck.tracing.device.short_kernels import METRIC


def test_gaps_are_those_of_the_device() -> None:
    trace = make_trace(
        [
            make_event("kernel", "gemm", 0, 50, device=0, stream=7),
            make_event("kernel", "add", 60, 2, device=0, stream=8),
            make_event("kernel", "add", 61, 3, device=0, stream=7),
            make_event("kernel", "mul", 100, 9, device=0, stream=7),
            make_event("gpu_memset", "Memset (Device)", 120, 1, device=0, stream=7),
            make_event("kernel", "add", 130, 10, device=0, stream=7),
        ]
    )

    rows = [tuple(row.values()) for row in measure_rows(METRIC, trace)]

    assert rows == [
        (-1, "compute", "mul", 1, 9_000, 36_000),
        (-1, "compute", "add", 2, 5_000, 10_000),
    ]
    assert [row["name"] for row in measure_rows(METRIC, trace, short_kernel_ns=3_000)] == ["add"]


def test_no_device_work_gives_no_rows() -> None:
    assert measure_rows(METRIC, make_trace([])) == []
