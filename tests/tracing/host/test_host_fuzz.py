"""Whatever the events are, the figures of the host hold together."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracing.data import make_trace

from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.device import hardware_counters, memory, roofline, sequences
from whystuck.tracing.host import (
    autograd_links,
    compilations,
    data_waits,
    op_kernels,
    phases,
    python_frames,
    step_time,
    steps,
    syncs,
    user_annotations,
)
from whystuck.tracing.view import TraceView

METRICS = (
    autograd_links.METRIC,
    compilations.METRIC,
    data_waits.METRIC,
    hardware_counters.METRIC,
    syncs.METRIC,
    memory.METRIC,
    memory.TIMELINE,
    op_kernels.METRIC,
    op_kernels.LAUNCHES,
    phases.METRIC,
    python_frames.METRIC,
    python_frames.MODULES,
    roofline.METRIC,
    sequences.METRIC,
    step_time.METRIC,
    steps.METRIC,
    user_annotations.METRIC,
    user_annotations.WORK,
)
NAMES = {
    "cpu_op": [
        "aten::mm",
        "aten::item",
        "aten::convolution",
        "c10d::allreduce_",
        "dynamo",
        "autograd::engine::evaluate_function: MmBackward0",
    ],
    "user_annotation": ["ProfilerStep#1", "ProfilerStep#2", "data_load", "gloo:all_reduce"],
    "python_function": ["nn.Module: Linear_0", "train.py(1): f", "<built-in x object at 0x1>"],
    "cuda_runtime": ["cudaLaunchKernel", "cudaStreamSynchronize", "cudaMemcpy"],
    "kernel": ["gemm", "ncclDevKernel_AllReduce"],
    "gpu_memcpy": ["Memcpy DtoH (Device -> Pageable)"],
    "gpu_user_annotation": ["forward"],
    "cuda_profiler_range": ["gemm"],
}
SHAPES = ["nonsense", [], [[2, 3], [3, 4]], [[2, 3, 4, 4], [5, 3, 3, 3]]]


@st.composite
def make_events(draw: st.DrawFn) -> dict[str, Any]:
    category = draw(st.sampled_from(sorted(NAMES)))
    args = {
        "correlation": draw(st.integers(-1, 4)),
        "External id": draw(st.integers(-1, 3)),
        "device": draw(st.integers(0, 1)),
        "stream": draw(st.sampled_from([7, "7", "x"])),
        "Sequence number": draw(st.integers(-1, 2)),
        "Fwd thread id": draw(st.integers(0, 1)),
        "Input Dims": draw(st.sampled_from(SHAPES)),
        "Input type": draw(st.sampled_from(["x", [], ["float", "float"]])),
    }
    return {
        "ph": "X",
        "cat": category,
        "name": draw(st.sampled_from(NAMES[category])),
        "pid": draw(st.sampled_from([0, 1, "Spans"])),
        "tid": draw(st.integers(0, 2)),
        "ts": draw(st.integers(0, 30)),
        "dur": draw(st.integers(0, 20)),
        "args": args,
    }


@given(events=st.lists(make_events(), max_size=15), all_steps=st.booleans())
@settings(deadline=None)
def test_any_events_give_all_tables(events: list[dict[str, Any]], *, all_steps: bool) -> None:
    options = TraceOptions(all_steps=all_steps, sequence_operator="aten", sequence_length=1)
    view = TraceView(make_trace(events), options)

    for metric in METRICS:
        table = metric.measure(view, options)

        assert tuple(table.columns) == metric.columns
        for name, column in table.columns.items():
            if name.endswith("_ns") and name not in ("start_ns", "end_ns", "time_ns"):
                assert not (column < -1).any(), (metric.name, name)


@given(events=st.lists(make_events(), max_size=25), all_steps=st.booleans())
@settings(deadline=None)
def test_causes_add_up_whatever_the_events(
    events: list[dict[str, Any]], *, all_steps: bool
) -> None:
    options = TraceOptions(all_steps=all_steps)

    table = step_time.METRIC.measure(TraceView(make_trace(events), options), options)

    causes = [table[name] for name in step_time.METRIC.columns[3:]]
    total = np.sum(causes, axis=0)
    is_known = table["compute_ns"] >= 0
    assert (total[is_known] == table["wall_ns"][is_known]).all()
    assert all((cause[is_known] >= 0).all() for cause in causes)


@given(events=st.lists(make_events(), max_size=25))
@settings(deadline=None)
def test_work_is_attributed_once_whatever_the_events(events: list[dict[str, Any]]) -> None:
    options = TraceOptions()
    view = TraceView(make_trace(events), options)

    table = op_kernels.METRIC.measure(view, options)

    rows = view.device_rows
    assert int(table["count"].sum()) == len(rows)
    assert int(table["sum_ns"].sum()) == int(view.events.duration_ns[rows].sum())
