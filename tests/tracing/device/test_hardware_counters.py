"""Hardware counters and the launches that they belong to."""

from __future__ import annotations

from typing import Any

from tests.tracing.data import make_event, make_trace
from tests.tracing.measuring import measure_rows

from whystuck.tracing.device import hardware_counters


def launch(start: float) -> dict[str, Any]:
    return make_event("cuda_runtime", "cudaLaunchKernel", start, 8, correlation=int(start))


def counted(name: str, start: float, value: float) -> dict[str, Any]:
    counters = {COUNTER: value, "kind": "no number"}
    return make_event("cuda_profiler_range", name, start, 4, **counters)


COUNTER = "smsp__inst_executed.sum"
STACK = ["aten::linear", "aten::addmm"]
OPS = [
    make_event("cpu_op", "aten::linear", 0, 50),
    make_event("cpu_op", "aten::addmm", 5, 40),
    make_event("cpu_op", "aten::relu", 60, 40),
]


def test_counters_have_the_ops_that_launched_the_kernels() -> None:
    trace = make_trace(
        [*OPS, launch(10), launch(70), counted("gemm", 12, 5), counted("relu", 72, 7.5)]
    )

    rows = measure_rows(hardware_counters.METRIC, trace)

    assert [list(row.values())[1:] for row in rows] == [
        [0, "gemm", 12_000, 4_000, COUNTER, 5.0, *STACK[::-1], " | ".join(STACK)],
        [1, "relu", 72_000, 4_000, COUNTER, 7.5, *("aten::relu",) * 3],
    ]


def test_launch_without_counters_leaves_what_is_certain() -> None:
    trace = make_trace(
        [*OPS, launch(10), launch(30), launch(70), counted("gemm", 12, 5), counted("relu", 79, 7)]
    )

    rows = measure_rows(hardware_counters.METRIC, trace)

    assert [(row["kernel"], row["op"]) for row in rows] == [
        ("gemm", "aten::addmm"),
        ("relu", "aten::relu"),
    ]


def test_counters_behind_one_launch_are_not_guessed() -> None:
    trace = make_trace(
        [*OPS, launch(10), counted("a", 19, 1), counted("b", 30, 2), counted("c", 40, 3)]
    )

    rows = measure_rows(hardware_counters.METRIC, trace)

    assert [(row["kernel"], row["op"]) for row in rows] == [("a", ""), ("b", ""), ("c", "")]


def test_counters_without_launches_are_listed() -> None:
    (row,) = measure_rows(hardware_counters.METRIC, make_trace([counted("a", 5, 1)]))

    assert (row["kernel"], row["op"], row["op_stack"]) == ("a", "", "")
