"""The last work of a device, and launches that have none."""

from __future__ import annotations

from typing import Any

from tests.tracing.data import make_event, make_trace
from tests.tracing.measuring import measure_rows

from whystuck.tracing.host.unfinished import METRIC


def launch(start: float, number: int, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return make_event("cuda_runtime", name, start, 2, correlation=number)


def test_first_launch_without_work_is_told_with_its_op() -> None:
    trace = make_trace(
        [
            make_event("cpu_op", "aten::mm", 0, 10),
            launch(5, 1),
            make_event("kernel", "gemm", 20, 30, device=0, stream=7, correlation=1),
            make_event("cpu_op", "my::outer", 60, 30),
            make_event("cpu_op", "my::spin", 65, 10),
            launch(70, 2),
            make_event("cpu_op", "c10d::allreduce_", 100, 10),
            launch(105, 3),
            launch(108, 4, "cudaEventRecord"),
        ]
    )
    (row,) = measure_rows(METRIC, trace)

    assert (row["name"], row["open_count"]) == ("gemm", 2)
    assert (row["open_api"], row["open_op"]) == ("cudaLaunchKernel", "my::spin")
    assert row["open_ns"] - row["end_ns"] == 20_000


def test_launches_that_all_have_work_leave_nothing_open() -> None:
    trace = make_trace(
        [launch(5, 1), make_event("kernel", "gemm", 20, 30, device=0, stream=7, correlation=1)]
    )
    (row,) = measure_rows(METRIC, trace)

    assert (row["open_count"], row["open_op"], row["open_ns"]) == (0, "", 0)


def test_trace_whose_launches_have_no_work_at_all() -> None:
    (row,) = measure_rows(METRIC, make_trace([launch(5, 1)]))

    assert (row["name"], row["end_ns"], row["open_count"]) == ("", 0, 1)


def test_no_calls_give_no_rows() -> None:
    assert measure_rows(METRIC, make_trace([])) == []
