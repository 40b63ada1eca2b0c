"""Annotations of host and device, and the work under them."""

from __future__ import annotations

import math
from typing import Any

from tests.tracing.data import make_event, make_trace
from tests.tracing.measuring import measure_rows

from whystuck.evidence.traces.events import Trace
from whystuck.tracing.host import user_annotations


def make_annotated() -> Trace:
    def work(name: str, start: float, us: float, number: int) -> list[dict[str, Any]]:
        at = {"pid": 0, "tid": 7, "device": 0, "stream": 7}
        return [
            make_event("cuda_runtime", "cudaLaunchKernel", start - 20, 2, correlation=number),
            make_event("kernel", name, start, us, correlation=number, **at),
        ]

    return make_trace(
        [
            make_event("user_annotation", "forward", 0, 30),
            make_event("user_annotation", "block", 5, 20),
            make_event("user_annotation", "block", 6, 10),
            make_event("user_annotation", "forward", 100, 10),
            make_event("gpu_user_annotation", "forward", 20, 25, pid=0, tid=7),
            *work("a", 28, 5, 1),
            *work("b", 38, 5, 2),
            *work("c", 46, 5, 3),
            *work("d", 60, 5, 4),
        ],
        distributedInfo={"rank": 1},
    )


def test_work_under_annotations_counts_once_a_name() -> None:
    rows = measure_rows(user_annotations.METRIC, make_annotated())

    found = {(row["kind"], row["name"]): row for row in rows}
    assert list(found) == [("host", "forward"), ("host", "block"), ("device", "forward")]
    forward, block, device = found.values()
    assert (forward["count"], forward["sum_ns"], forward["device_ns"]) == (2, 40_000, 15_000)
    assert (forward["mean_ns"], forward["min_ns"], forward["max_ns"]) == (20_000.0, 10_000, 30_000)
    assert math.isclose(forward["std_ns"], math.sqrt(2 * 10_000.0**2))
    assert (block["count"], block["device_ns"], block["kernels"]) == (2, 10_000, 2)
    assert (device["count"], device["device_ns"], device["kernels"]) == (1, 10_000, 2)
    assert math.isnan(device["std_ns"])


def test_each_work_has_the_innermost_annotation() -> None:
    rows = measure_rows(user_annotations.WORK, make_annotated())

    assert [(row["name"], row["device_annotation"], row["host_annotation"]) for row in rows] == [
        ("a", "forward", "block"),
        ("b", "forward", "block"),
        ("c", "", "forward"),
        ("d", "", ""),
    ]


def test_annotations_of_the_dropped_step_do_not_count() -> None:
    steps = [make_event("user_annotation", f"ProfilerStep#{i}", i * 50, 50) for i in (0, 1)]
    late = make_event("user_annotation", "backward", 60, 5, **{"External id": 7})
    device = make_event(
        "gpu_user_annotation", "backward", 10, 5, pid=0, tid=7, **{"External id": 7}
    )

    rows = measure_rows(user_annotations.METRIC, make_trace([*steps, late, device]))

    assert [row["name"] for row in rows] == ["ProfilerStep#0"]
