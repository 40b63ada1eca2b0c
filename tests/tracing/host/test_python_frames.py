"""Time of Python functions and modules, and the passes of autograd."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from tests.tracing.data import make_event, make_trace, read_real
from tests.tracing.measuring import measure_rows
from tests.tracing.profiled import run_jobs, trace_training

from whystuck.evidence.traces.events import Trace
from whystuck.read.traces.files import read_trace_file
from whystuck.tracing.host import autograd_links, phases, python_frames
from whystuck.tracing.host.autograd_links import link_passes
from whystuck.tracing.view import TraceView

NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def frame(name: str, start: float, us: float, **args: Any) -> dict[str, Any]:
    return make_event("python_function", name, start, us, **args)


def work(name: str, launch: float, number: int, us: float, tid: int = 1) -> list[dict[str, Any]]:
    at = {"pid": 0, "tid": 7, "device": 0, "stream": 7}
    return [
        make_event("cuda_runtime", "cudaLaunchKernel", launch, 1, correlation=number, tid=tid),
        make_event("kernel", name, launch + 100, us, correlation=number, **at),
    ]


def op(name: str, start: float, us: float, sequence: int, told: int = 0, tid: int = 1) -> Any:
    args = {"Sequence number": sequence, "Fwd thread id": told}
    return make_event("cpu_op", name, start, us, tid=tid, **args)


def make_trained() -> Trace:
    return make_trace(
        [
            frame("train.py(3): step", 0, 60),
            frame("nn.Module: Linear_0", 5, 30),
            frame("nn.Module: Linear_0", 10, 20),
            frame("<built-in method mm of Tensor object at 0x7f00>", 12, 5),
            frame("<built-in method mm of Tensor object at 0x7f11>", 18, 5),
            op("aten::linear", 11, 12, 7),
            op("aten::addmm", 13, 9, 7),
            *work("gemm", 14, 1, 8),
            op(NODE, 70, 20, 7, told=1, tid=2),
            make_event("cpu_op", "aten::mm", 72, 10, tid=2),
            *work("gemm_back", 75, 2, 16, tid=2),
            make_event("user_annotation", "Optimizer.step#SGD.step", 95, 10),
            make_event("cpu_op", "aten::add_", 96, 4),
            *work("add", 97, 3, 4),
        ]
    )


def test_functions_have_their_own_time_and_that_of_their_work() -> None:
    rows = {row["name"]: row for row in measure_rows(python_frames.METRIC, make_trained())}

    builtin = rows["<built-in method mm of Tensor>"]
    assert (builtin["count"], builtin["sum_ns"], builtin["device_ns"]) == (2, 10_000, 8_000)
    outer = rows["train.py(3): step"]
    assert (outer["sum_ns"], outer["self_ns"], outer["kernels"]) == (60_000, 30_000, 1)


def test_module_has_its_forward_and_backward_work() -> None:
    (row,) = measure_rows(python_frames.MODULES, make_trained())

    assert list(row.values())[1:] == ["Linear_0", 2, 30_000, 8_000, 1, 20_000, 16_000]


def test_node_of_autograd_belongs_to_the_op_that_made_it() -> None:
    (row,) = measure_rows(autograd_links.METRIC, make_trained())

    assert list(row.values())[1:] == [
        "aten::addmm", "AddmmBackward0", 1, 9_000, 20_000, 8_000, 16_000,
    ]  # fmt: skip


def test_phases_share_the_work_of_devices_out() -> None:
    rows = measure_rows(phases.METRIC, make_trained())

    assert {row["phase"]: (row["ops"], row["device_ns"]) for row in rows} == {
        "forward": (1, 8_000),
        "backward": (1, 16_000),
        "optimizer": (1, 4_000),
    }
    assert sum(row["device_share"] for row in rows) == pytest.approx(1)


def test_links_equal_the_arrows_of_the_profiler() -> None:
    path = run_jobs() / "linked.json"
    forward = {
        int(event["ts"] * 1000)
        for event in json.loads(path.read_text(), parse_float=Decimal)["traceEvents"]
        if (event.get("cat"), event["ph"]) == ("fwdbwd", "s")
    }
    trace = read_trace_file(path)
    view = TraceView(trace)

    links = link_passes(view)

    starts = trace.events.start_ns
    assert set(starts[links.forward].tolist()) == forward
    assert len(links) == len(set(links.backward.tolist())) == len(forward) >= 3 * 8
    names = [trace.names[one] for one in trace.events.name[links.backward].tolist()]
    assert all(name.startswith("autograd::engine::evaluate_function: ") for name in names)


def test_real_modules_of_a_training_have_both_passes() -> None:
    rows = measure_rows(python_frames.MODULES, trace_training(with_stack=True))

    found = {row["name"]: row for row in rows}
    assert {"Net_0", "Conv2d_0", "BatchNorm2d_0", "MultiheadAttention_0"} <= set(found)
    assert all(row["calls"] == 3 for row in rows)
    assert found["Net_0"]["host_ns"] == max(row["host_ns"] for row in rows)
    assert found["Conv2d_0"]["backward_host_ns"] > 0
    inner = sum(row["backward_host_ns"] for row in rows if row["name"] != "Net_0")
    assert inner <= found["Net_0"]["backward_host_ns"]


def test_real_steps_have_all_phases() -> None:
    rows = measure_rows(phases.METRIC, trace_training())

    steps = Counter(row["step"] for row in rows)
    assert set(steps) == {1, 2, 3}
    for step in steps:
        mine = {row["phase"]: row["ops"] for row in rows if row["step"] == step}
        assert {"data", "forward", "backward", "optimizer"} <= set(mine)


def test_every_work_of_real_stacks_is_under_the_outermost_frame() -> None:
    rows = measure_rows(python_frames.METRIC, read_real("tl_b200_rank0of8/eager_trace.json.gz"))

    assert max(row["kernels"] for row in rows) >= 909
    assert sum(row["count"] for row in rows) == 15_230
    # No time of their own is counted twice: it is at most what the outermost frames lasted.
    assert sum(row["self_ns"] for row in rows) <= max(row["sum_ns"] for row in rows) * 1.1
