"""Whatever a trace holds: tables of devices have their columns, and figures that can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tracing.data import make_event, make_trace
from tests.tracing.measuring import measure_rows

from whystuck.evidence.traces.events import Trace
from whystuck.tracing.collectives import overlap
from whystuck.tracing.device import (
    copies,
    idle,
    kernels,
    launches,
    queue_length,
    short_kernels,
    temporal,
    utilisation,
)
from whystuck.tracing.metric import Metric

METRICS = (
    temporal.METRIC,
    temporal.STREAM_METRIC,
    temporal.CLASS_METRIC,
    overlap.METRIC,
    idle.METRIC,
    idle.SUMMARY_METRIC,
    kernels.METRIC,
    launches.METRIC,
    launches.SUMMARY_METRIC,
    queue_length.METRIC,
    queue_length.SERIES_METRIC,
    copies.METRIC,
    copies.SERIES_METRIC,
    short_kernels.METRIC,
    utilisation.METRIC,
)
NAMES = ("gemm", "ncclDevKernel_X", "Memcpy HtoD (Host -> Device)", "ProfilerStep#3", "")
CATEGORIES = (
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_runtime",
    "cuda_driver",
    "cpu_op",
    "user_annotation",
    "gpu_user_annotation",
    "cuda_sync",
    "unheard_of",
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "device": st.integers(0, 2),
        "stream": st.integers(0, 2),
        "correlation": st.integers(-1, 4),
        "External id": st.integers(-1, 4),
        "bytes": st.integers(0, 1000),
        "blocks per SM": st.floats(0, 4),
        "est. achieved occupancy %": st.integers(0, 100),
        "memory bandwidth (GB/s)": st.floats(0, 10),
        "Collective name": st.just("allreduce"),
    },
)
EVENTS = st.lists(
    st.builds(
        lambda category, name, start, length, args: make_event(
            category, name, start, length, **args
        ),
        st.sampled_from(CATEGORIES),
        st.sampled_from(NAMES),
        st.integers(0, 60),
        st.integers(0, 20),
        ARGUMENTS,
    ),
    max_size=15,
)


def check(metric: Metric, trace: Trace) -> None:
    for row in measure_rows(metric, trace):
        assert row["rank"] == 5
        for name, value in row.items():
            if name.endswith(("_ns", "_count")) or name in {"count", "points"}:
                lowest = -1 if name.startswith("p") else 0
                assert np.isnan(value) or value >= lowest, (metric.name, name)
            if name.endswith(("share", "efficiency", "occupancy")):
                assert np.isnan(value) or -1e-9 <= value <= 1 + 1e-9, (metric.name, name)


@given(EVENTS)
def test_figures_are_such_as_can_be(events: list[dict[str, Any]]) -> None:
    trace = make_trace(events, distributedInfo={"rank": 5})

    for metric in METRICS:
        check(metric, trace)


@pytest.mark.parametrize("metric", METRICS, ids=lambda one: one.name)
@pytest.mark.parametrize(
    "events",
    [
        [],
        [make_event("cpu_op", "aten::add", 0, 1)],
        [make_event("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=1)],
        [make_event("gpu_user_annotation", "ProfilerStep#1", 0, 1, stream=7)],
        [make_event("cuda_sync", "Stream Sync", 0, 1, stream=7, device=0)],
    ],
    ids=["nothing", "an op", "a launch", "an annotation", "a sync"],
)
def test_traces_without_work_of_devices_give_no_rows(
    metric: Metric, events: list[dict[str, Any]]
) -> None:
    assert measure_rows(metric, make_trace(events)) == []


@pytest.mark.parametrize("metric", METRICS, ids=lambda one: one.name)
def test_one_piece_of_work_of_no_time_is_enough(metric: Metric) -> None:
    trace = make_trace([make_event("kernel", "gemm", 0, 0)], distributedInfo={"rank": 5})

    check(metric, trace)
