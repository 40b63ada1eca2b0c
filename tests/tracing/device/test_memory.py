"""Peaks of memory and how it changed."""

from __future__ import annotations

import itertools
from typing import Any

from tests.tracing.data import make_event, make_trace
from tests.tracing.measuring import measure_rows
from tests.tracing.profiled import trace_training

from whystuck.tracing.device import memory


def mark(at: float, change: int, allocated: int, reserved: int, kind: int = 1) -> dict[str, Any]:
    args = {
        "Bytes": change,
        "Total Allocated": allocated,
        "Total Reserved": reserved,
        "Device Type": kind,
        "Device Id": 0 if kind else -1,
    }
    shape = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1}
    return {**shape, "s": "t", "ts": at, "args": args}


STEPS = [make_event("user_annotation", f"ProfilerStep#{i}", i * 100, 100) for i in (0, 1, 2)]


def test_peak_is_told_with_its_step_and_op() -> None:
    trace = make_trace(
        [
            *STEPS,
            make_event("cpu_op", "aten::linear", 110, 40),
            make_event("cpu_op", "aten::addmm", 115, 30),
            mark(10, 100, 100, 512),
            mark(120, 400, 500, 512),
            mark(130, -400, 100, 1024),
            mark(140, 64, 64, 0, kind=0),
            mark(250, 9000, 9100, 9999),  # of the step that is dropped
        ],
        distributedInfo={"rank": 4},
    )

    cpu, cuda = measure_rows(memory.METRIC, trace)

    assert (cpu["device_type"], cpu["device"], cpu["peak_allocated_bytes"]) == ("cpu", -1, 64)
    assert list(cuda.values()) == [
        4, "cuda", 0, 2, 1, 500, 500, 1024, 120_000, 1, "aten::linear", 100, 100,
    ]  # fmt: skip
    timeline = measure_rows(memory.TIMELINE, trace)
    assert [(row["device_type"], row["bytes"]) for row in timeline] == [
        ("cpu", 64),
        ("cuda", 100),
        ("cuda", 400),
        ("cuda", -400),
    ]


def test_real_training_on_the_host_has_a_peak_in_a_step() -> None:
    trace = trace_training()

    (row,) = measure_rows(memory.METRIC, trace)
    timeline = measure_rows(memory.TIMELINE, trace)

    assert (row["device_type"], row["peak_step"] in (1, 2, 3)) == ("cpu", True)
    assert row["allocations"] + row["frees"] == len(timeline) > 100
    assert row["peak_allocated_bytes"] == max(one["allocated_bytes"] for one in timeline) > 50_000
    assert all(a["time_ns"] <= b["time_ns"] for a, b in itertools.pairwise(timeline))


def test_trace_without_marks_of_memory_has_no_rows() -> None:
    assert measure_rows(memory.METRIC, make_trace(STEPS)) == []
    assert measure_rows(memory.TIMELINE, make_trace([])) == []
