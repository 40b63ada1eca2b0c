"""Steps on the host's clock, and what each spent its time on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tracing.data import make_event, make_trace, read_real
from tests.tracing.measuring import measure_rows
from tests.tracing.profiled import run_job, trace_training

from whystuck.evidence.traces.events import Category
from whystuck.read.traces.files import read_trace_file
from whystuck.tracing.host import step_time, steps
from whystuck.tracing.view import TraceView

CAUSES = step_time.METRIC.columns[3:]


def kernel(name: str, start: float, us: float, launch: int, **args: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, "correlation": launch, "pid": 0, "tid": 7, **args}
    return make_event("kernel", name, start, us, **args)


def step(number: int, start: float, us: float) -> dict[str, Any]:
    return make_event("user_annotation", f"ProfilerStep#{number}", start, us)


def test_last_of_several_steps_is_dropped_unless_all_are_wanted() -> None:
    trace = make_trace([step(3, 0, 10), step(4, 10, 10), step(5, 20, 10)])

    assert [row["step"] for row in measure_rows(steps.METRIC, trace)] == [3, 4]
    assert [row["step"] for row in measure_rows(steps.METRIC, trace, all_steps=True)] == [3, 4, 5]


def test_trace_without_marks_is_one_step_from_the_first_to_the_last_event() -> None:
    trace = make_trace(
        [make_event("cpu_op", "aten::add", 5, 5), kernel("add", 20, 10, 1)],
        distributedInfo={"rank": 2},
    )

    assert measure_rows(steps.METRIC, trace) == [
        {"rank": 2, "step": -1, "start_ns": 0, "end_ns": 25_000, "mark": ""}
    ]


def test_steps_of_the_first_kineto_are_ops() -> None:
    marks = [make_event("Operator", f"ProfilerStep#{i}", i * 10, 9) for i in range(3)]

    assert [row["step"] for row in measure_rows(steps.METRIC, make_trace(marks))] == [0, 1]


def test_trace_without_events_has_no_step() -> None:
    assert measure_rows(steps.METRIC, make_trace([])) == []
    assert measure_rows(step_time.METRIC, make_trace([])) == []


def test_every_cause_of_a_step_is_told_apart() -> None:
    trace = make_trace(
        [
            step(0, 0, 100),
            make_event("user_annotation", "enumerate(DataLoader)#_Iter.__next__", 0, 20),
            make_event("cpu_op", "aten::stack", 5, 5),
            make_event("cpu_op", "aten::mm", 20, 20),
            make_event("cuda_runtime", "cudaLaunchKernel", 25, 5, correlation=1),
            kernel("gemm", 35, 15, 1),
            kernel("ncclDevKernel_AllReduce", 45, 15, 2, stream=8, tid=8),
            make_event("gpu_memcpy", "Memcpy DtoH", 58, 12, device=0, stream=9, pid=0, tid=9),
            make_event("cuda_runtime", "cudaStreamSynchronize", 50, 25, correlation=3),
            step(1, 100, 100),
        ]
    )

    (row,) = measure_rows(step_time.METRIC, trace)

    assert {name: row[name] // 1000 for name in CAUSES} == {
        "compute_ns": 15,
        "exposed_comm_ns": 10,
        "exposed_memory_ns": 10,
        "data_wait_ns": 20,
        "host_ns": 10,
        "launch_ns": 5,
        "sync_ns": 5,
        "idle_ns": 25,
    }
    assert row["wall_ns"] == 100_000


def test_causes_are_unknown_where_the_trace_lacks_the_devices() -> None:
    trace = make_trace([step(0, 0, 9), make_event("cuda_runtime", "cudaLaunchKernel", 2, 1)])

    (row,) = measure_rows(step_time.METRIC, trace)

    assert row["wall_ns"] == 9_000
    assert {row[name] for name in CAUSES} == {-1}


def test_causes_are_unknown_where_only_the_host_of_a_device_was_recorded() -> None:
    mark = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 2}
    allocated = {**mark, "args": {"Bytes": 8, "Device Type": 1, "Device Id": 0}}
    trace = make_trace([step(0, 0, 9), make_event("cpu_op", "aten::mm", 1, 5), allocated])

    (row,) = measure_rows(step_time.METRIC, trace)

    assert (row["wall_ns"], row["compute_ns"], row["idle_ns"]) == (9_000, -1, -1)


@pytest.mark.parametrize(
    "name",
    [
        "hta_sampled_2rank/rank-0.json.gz",
        "hta_cuda_sync_alexnet/t.json.gz",
        "hta_mi250_minitoy/t.json.gz",
        "tl_b200_rank0of8/eager_trace.json.gz",
    ],
)
@pytest.mark.parametrize("all_steps", [False, True])
def test_causes_of_real_traces_add_up(name: str, *, all_steps: bool) -> None:
    trace = read_real(name)
    rows = measure_rows(step_time.METRIC, trace, all_steps=all_steps)

    for row in rows:
        assert sum(row[cause] for cause in CAUSES) == row["wall_ns"] > 0
        assert min(row[cause] for cause in CAUSES) >= 0
    assert sum(row["compute_ns"] for row in rows) > 0


def test_ops_are_the_work_of_a_training_without_devices() -> None:
    trace = trace_training()

    rows = measure_rows(step_time.METRIC, trace)

    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert sum(row[cause] for cause in CAUSES) == row["wall_ns"]
        assert row["compute_ns"] > 0
        assert row["exposed_comm_ns"] == row["launch_ns"] == row["sync_ns"] == 0
        assert row["data_wait_ns"] >= 8 * 1_000_000  # eight samples of at least 1 ms each


PARALLEL = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import profile, schedule

def train(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    net = nn.parallel.DistributedDataParallel(nn.Linear(64, 4))
    with profile(
        schedule=schedule(wait=1, warmup=1, active=4, repeat=1),
        on_trace_ready=lambda one: one.export_chrome_trace(f"{folder}/{rank}.json"),
    ) as profiler:
        for _ in range(6):
            time.sleep(0.2 * rank)
            net(torch.randn(8, 64)).sum().backward()
            profiler.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    processes = [os.fork() for _ in range(1)]
    train(int(processes[0] == 0), sys.argv[1])
    if processes[0]:
        sys.exit(os.waitpid(processes[0], 0)[1])
"""


@pytest.mark.slow
def test_rank_on_the_host_waits_in_the_collective_of_a_late_one(tmp_path: Path) -> None:
    run_job(PARALLEL, str(tmp_path))

    early, late = (
        measure_rows(step_time.METRIC, read_trace_file(tmp_path / f"{rank}.json"))
        for rank in (0, 1)
    )

    assert [row["step"] for row in early] == [row["step"] for row in late] == [2, 3, 4]
    for mine, other in zip(early, late, strict=True):
        assert mine["exposed_comm_ns"] > other["exposed_comm_ns"]
        assert other["idle_ns"] >= 200_000_000


def test_collectives_of_the_host_are_no_computation() -> None:
    trace = make_trace(
        [
            step(0, 0, 100),
            make_event("cpu_op", "aten::mm", 0, 30),
            make_event("cpu_op", "autograd::engine::evaluate_function: AddBackward0", 30, 40),
            make_event("cpu_op", "c10d::allreduce_", 40, 20),
            make_event("user_annotation", "gloo:all_reduce", 45, 35, tid=2),
            make_event("cpu_op", "dynamo", 85, 10),
            step(1, 100, 1),
        ]
    )

    (row,) = measure_rows(step_time.METRIC, trace)

    assert row["compute_ns"] == 50_000
    assert row["exposed_comm_ns"] == 30_000
    assert row["host_ns"] == 10_000
    assert row["idle_ns"] == 10_000


def test_steps_find_the_step_of_a_time() -> None:
    view = TraceView(make_trace([step(7, 0, 10), step(8, 12, 10), step(9, 30, 5)]))
    found = steps.find_steps(view)

    assert found.number_at(np.array([0, 9_999, 10_000, 12_000, 31_000])).tolist() == [
        7,
        7,
        -1,
        8,
        -1,
    ]
    assert (
        view.ops.row.tolist()
        == np.flatnonzero(view.events.category == Category.USER_ANNOTATION).tolist()
    )
