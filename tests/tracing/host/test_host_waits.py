"""Waits for data and for devices, and compilations."""

from __future__ import annotations

from typing import Any

import pytest
from tests.tracing.data import make_event, make_trace, read_real
from tests.tracing.measuring import measure_rows
from tests.tracing.profiled import run_job, trace_training

from whystuck.read.traces.files import read_trace_file
from whystuck.tracing.host import compilations, data_waits, syncs
from whystuck.tracing.host.spans import find_data_waits
from whystuck.tracing.view import TraceView

STEPS = [
    make_event("user_annotation", f"ProfilerStep#{i}", i * 1000, 1000, tid=1) for i in range(4)
]


def kernel(name: str, start: float, us: float, launch: int) -> dict[str, Any]:
    return make_event(
        "kernel", name, start, us, device=0, stream=7, correlation=launch, pid=0, tid=7
    )


def launch(start: float, number: int) -> dict[str, Any]:
    return make_event("cuda_runtime", "cudaLaunchKernel", start, 2, correlation=number)


@pytest.mark.parametrize(
    ("name", "is_wait"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", True),
        ("enumerate(DataPipe)#MapperIterDataPipe", True),
        ("## data_load ##", True),
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", True),
        ("IteratorGetNext", True),
        ("get_batch", True),
        ("fetch_data", True),
        ("forward", False),
        ("FSDP::pre_forward_prefetch", False),
        ("async_compile.wait_data: compile_id=0/1", False),
        ("nccl:all_reduce", False),
        ("Optimizer.step#SGD.step", False),
        ("aten::batch_norm", False),
    ],
)
def test_loops_over_batches_are_known_by_their_names(name: str, *, is_wait: bool) -> None:
    view = TraceView(make_trace([make_event("user_annotation", name, 0, 5)]))

    assert len(find_data_waits(view)) == is_wait


def test_wait_for_data_is_exposed_where_the_device_is_idle() -> None:
    trace = make_trace(
        [
            *STEPS,
            make_event("user_annotation", "data_load", 100, 300),
            make_event("user_annotation", "enumerate(DataLoader)#_Iter.__next__", 110, 200),
            launch(50, 1),
            kernel("gemm", 60, 140, 1),
            make_event("user_annotation", "data_load", 1100, 100),
            make_event("user_annotation", "data_load", 1300, 100),
        ]
    )

    rows = measure_rows(data_waits.METRIC, trace)

    assert [tuple(row.values())[1:] for row in rows] == [
        (0, "data_load", 1, 300_000, 200_000),
        (1, "data_load", 2, 200_000, 200_000),
    ]


def test_frames_of_the_loader_count_where_there_is_no_annotation() -> None:
    frame = "torch/utils/data/dataloader.py(733): __next__"
    trace = make_trace([make_event("python_function", frame, 5, 10)])

    assert [row["sum_ns"] for row in measure_rows(data_waits.METRIC, trace)] == [10_000]


def test_loop_over_batches_was_an_op_in_the_first_kineto() -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    trace = make_trace([make_event("Operator", name, 5, 10), make_event("Operator", "x", 6, 2)])

    assert [row["sum_ns"] for row in measure_rows(data_waits.METRIC, trace)] == [10_000]


def test_real_training_waits_for_its_loader_in_each_step() -> None:
    rows = measure_rows(data_waits.METRIC, trace_training(with_stack=True))

    assert [(row["step"], row["count"]) for row in rows] == [(1, 1), (2, 1), (3, 1)]
    assert all(row["sum_ns"] == row["exposed_ns"] >= 8_000_000 for row in rows)


def test_sync_drains_the_device_and_the_time_until_the_next_work_is_told() -> None:
    events = [
        *STEPS,
        launch(10, 1),
        kernel("gemm", 20, 100, 1),
        make_event("python_function", "train.py(12): train_step", 5, 600),
        make_event("python_function", "torch/_tensor.py(9): item", 29, 100),
        make_event("cpu_op", "forward", 28, 102),  # of TorchScript
        make_event("cpu_op", "aten::item", 30, 98),
        make_event("cpu_op", "aten::_local_scalar_dense", 31, 96),
        make_event("cuda_runtime", "cudaStreamSynchronize", 35, 90, correlation=9),
        launch(300, 2),
        kernel("gemm", 310, 10, 2),
        # Work waits behind the next sync: the device does not run dry.
        launch(330, 3),
        launch(335, 4),
        kernel("gemm", 340, 40, 3),
        make_event("cuda_runtime", "cudaEventSynchronize", 345, 36, correlation=10),
        kernel("gemm", 400, 40, 4),
        # Of the profiler, after the steps.
        make_event("cuda_runtime", "cudaDeviceSynchronize", 4100, 36, correlation=11),
    ]

    rows = measure_rows(syncs.METRIC, make_trace(events), all_steps=True)

    assert [tuple(row.values())[1:] for row in rows] == [
        (
            "cudaStreamSynchronize",
            "aten::item",
            "train.py(12): train_step",
            1,
            90_000,
            185_000,
            0.25,
        ),
        ("cudaEventSynchronize", "", "train.py(12): train_step", 1, 36_000, 0, 0.25),
    ]


def test_sync_of_an_idle_device_is_not_what_leaves_it_idle() -> None:
    events = [
        kernel("gemm", 0, 10, 1),
        make_event("cpu_op", "aten::item", 20, 20),
        make_event("cuda_runtime", "cudaStreamSynchronize", 20, 10, correlation=9),
        make_event("cpu_op", "aten::mm", 60, 200),
        kernel("gemm", 100, 10, 2),
    ]

    (row,) = measure_rows(syncs.METRIC, make_trace(events))

    assert row["idle_after_ns"] == 0
    assert row["per_step"] != row["per_step"]  # NaN: there are no steps


def test_idle_time_in_which_the_host_waits_for_data_has_another_cause() -> None:
    events = [
        kernel("gemm", 0, 10, 1),
        make_event("cuda_runtime", "cudaStreamSynchronize", 5, 10, correlation=9),
        make_event("user_annotation", "data_load", 15, 60),
        make_event("cpu_op", "aten::mm", 80, 200),
        kernel("gemm", 100, 10, 2),
    ]

    (row,) = measure_rows(syncs.METRIC, make_trace(events))

    assert row["idle_after_ns"] == 25_000


def test_ops_that_read_values_are_syncs_where_calls_were_not_recorded() -> None:
    copy = {"device": 0, "stream": 7, "pid": 0, "tid": 7}
    events = [
        *STEPS,
        make_event("cpu_op", "aten::item", 10, 40),
        make_event("cpu_op", "aten::_local_scalar_dense", 11, 38),
        make_event("cuda_runtime", "cudaMemcpyAsync", 12, 4, correlation=1),
        make_event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 30, 5, correlation=1, **copy),
        make_event("cpu_op", "aten::item", 60, 4),  # of a tensor on the host
        make_event("cpu_op", "aten::copy_", 70, 9),
        make_event("cuda_runtime", "cudaMemcpyAsync", 72, 4, correlation=2),
        make_event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 90, 5, correlation=2, **copy),
    ]

    rows = measure_rows(syncs.METRIC, make_trace(events))

    assert [tuple(row.values())[1:] for row in rows] == [
        ("aten::_local_scalar_dense", "aten::item", "", 1, 38_000, 41_000, pytest.approx(1 / 3))
    ]


def test_real_syncs_have_the_op_that_waits() -> None:
    rows = measure_rows(syncs.METRIC, read_real("hta_cuda_sync_alexnet/t.json.gz"))

    found = {(row["call"], row["op"]): row["count"] for row in rows}
    assert found == {("cudaStreamSynchronize", "aten::to"): 16, ("cudaDeviceSynchronize", ""): 4}


def test_blocking_copies_of_rocm_are_syncs() -> None:
    rows = measure_rows(syncs.METRIC, read_real("hta_mi250_minitoy/t.json.gz"))

    assert [(row["call"], row["op"], row["count"], row["per_step"]) for row in rows] == [
        ("hipMemcpyWithStream", "aten::to", 2, 2.0)
    ]


def test_compiling_is_told_by_step_and_running_what_was_compiled_is_not() -> None:
    trace = make_trace(
        [
            *STEPS,
            make_event("cpu_op", "Torch-Compiled Region: 0/1", 10, 400),
            make_event("cpu_op", "## Call CompiledFxGraph fabc ##", 20, 300),
            make_event("cpu_op", "_compile.compile_inner (dynamo_timed)", 1010, 400),
            make_event("cpu_op", "backend_compile", 1020, 300),
            make_event("cuda_driver", "cuModuleLoadData", 1500, 30, correlation=4),
            make_event("cuda_driver", "cuModuleLoadData", 1600, 30, correlation=5),
            make_event("cpu_op", "dynamo", -500, 30),
        ]
    )

    rows = measure_rows(compilations.METRIC, trace)

    assert [tuple(row.values())[1:] for row in rows] == [
        (-1, "dynamo", 1, 30_000),
        (1, "_compile.compile_inner", 1, 400_000),
        (1, "cuModuleLoadData", 2, 60_000),
    ]


COMPILED = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile, schedule

@torch.compile(dynamic=False, backend=sys.argv[2])
def run(x):
    return torch.relu(x @ x).sum()

with profile(
    activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=4, repeat=1),
    on_trace_ready=lambda profiler: profiler.export_chrome_trace(sys.argv[1]),
) as profiler:
    for size in (8, 8, 8, 9, 9, 9):
        run(torch.ones(size, size, requires_grad=True)).backward()
        profiler.step()
"""


@pytest.mark.slow
def test_real_recompilation_is_found_in_its_step(tmp_path: Any) -> None:
    path = tmp_path / "trace.json"
    run_job(COMPILED, str(path), "aot_eager")

    rows = measure_rows(compilations.METRIC, read_trace_file(path), all_steps=True)

    assert {row["step"] for row in rows} == {3}
    assert sum(row["sum_ns"] for row in rows) > 1_000_000
