"""What a trace tells of the collectives of its rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.rank_sets import Job
from hypothesis import given
from hypothesis import strategies as st
from tests.tracing.data import make_event, make_trace, read_real
from tests.tracing.rank_sets import compare_ranks, compare_tables, measure_calls, simulate

from whystuck.evidence.ops.names import find_bus_factor
from whystuck.evidence.table import Table
from whystuck.evidence.traces.events import Trace
from whystuck.read.traces.files import read_trace_file
from whystuck.tracing.collectives.calls import METRIC
from whystuck.tracing.collectives.members import (
    number_text,
    read_member_list,
    read_members,
    write_members,
)
from whystuck.tracing.collectives.ops import (
    count_dtype_bytes,
    count_op_bytes,
    name_op,
)
from whystuck.tracing.collectives.rank_calls import CALLS

TOLD = {
    "Collective name": "_allgather_base",
    "In msg nelems": 100,
    "Out msg nelems": 800,
    "Group size": 8,
    "dtype": "BFloat16",
    "Process Group Name": "3",
    "Process Group Description": "dp",
    "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
    "Seq": 41,
    "Comms Id": 987,
}
PLACE = {"device": 0, "stream": 20, "correlation": 5, "External id": 9}


def calls_of(trace: Trace) -> Table:
    return measure_calls(trace).tables[CALLS]


def row_of(trace: Trace) -> dict[str, Any]:
    (row,) = calls_of(trace).rows()
    return dict(zip(METRIC.columns, row, strict=True))


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("nccl:_all_gather_base", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgs)", "reduce_scatter"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "all_reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("all_to_allv", "all_to_all"),
        ("gloo:barrier", "barrier"),
        ("gloo:send", "send"),
        ("nccl:recv 1<-0", "recv"),
        ("void vllm::cross_device_reduce_1stage<__half, 8>", "all_reduce"),
        ("nccl:reduce", "reduce"),
        ("nccl:gather", "gather"),
        ("nccl:coalesced", "coalesced"),
        ("deep_ep::internode::dispatch", "dispatch"),
        ("aten::mm", "unknown"),
    ],
)
def test_names_tell_ops(name: str, op: str) -> None:
    assert name_op(name) == op


def test_sizes_and_factors_are_those_of_nccl_tests() -> None:
    assert find_bus_factor("all_reduce", 8) == 1.75
    assert find_bus_factor("all_gather", 8) == find_bus_factor("all_to_all", 8) == 0.875
    assert find_bus_factor("broadcast", 8) == 1
    assert find_bus_factor("barrier", 8) is None
    assert count_op_bytes("all_gather", 8, 100, 800) == 800
    # Some versions of torch give the share for both.
    assert count_op_bytes("all_gather", 8, 100, 100) == 800
    assert count_op_bytes("reduce_scatter", 8, 800, 100) == 800
    assert count_op_bytes("all_reduce", 8, 100, 100) == 100
    assert count_op_bytes("all_to_all", 8, 300, 500) == 300
    assert count_op_bytes("recv", 2, -1, 50) == 50
    assert count_op_bytes("barrier", 8, -1, -1) == 0
    assert count_op_bytes("all_reduce", 8, -1, -1) == -1
    assert [count_dtype_bytes(one) for one in ("BFloat16", "c10::Half", "Float8_e4m3fn", "?")] == [
        *(2, 2, 1, -1)
    ]


def test_a_kernel_with_its_own_arguments() -> None:
    trace = make_trace(
        [
            make_event("cuda_runtime", "cudaLaunchKernelExC", 10, 5, correlation=5),
            make_event("kernel", "ncclDevKernel_AllGather_RING_LL", 40, 60, **PLACE, **TOLD),
            make_event("kernel", "gemm", 90, 60, device=0, stream=7),
        ],
        distributedInfo={"rank": 3, "world_size": 16},
    )

    row = row_of(trace)

    assert row["rank"] == 3
    assert (row["group"], row["group_desc"], row["group_size"]) == ("3", "dp", 8)
    assert (row["sequence"], row["comms_id"], row["members"]) == (41, "987", "0-7")
    assert (row["op"], row["dtype"], row["bytes"]) == ("all_gather", "BFloat16", 1600)
    assert (row["in_bytes"], row["out_bytes"]) == (200, 1600)
    assert row["end_ns"] - row["start_ns"] == 60_000
    assert row["start_ns"] - row["launch_ns"] == 30_000
    # For the last 10 µs a product of matrices runs beside it.
    assert row["exposed_ns"] == 50_000


@pytest.mark.parametrize("link", ["nesting", "external id"])
def test_a_kernel_is_told_by_the_op_of_the_host(link: str) -> None:
    told = make_event("cpu_op", "record_param_comms", 5, 20, **{"External id": 9}, **TOLD)
    place = dict(PLACE)
    if link == "nesting":
        place["External id"] = 77
    else:
        told["tid"] = 2
    trace = make_trace(
        [
            told,
            make_event("cuda_runtime", "cudaLaunchKernelExC", 10, 5, correlation=5),
            make_event("kernel", "ncclDevKernel_AllGather_RING_LL", 40, 60, **place),
        ]
    )

    row = row_of(trace)

    assert (row["group"], row["op"], row["bytes"], row["sequence"]) == ("3", "all_gather", 1600, 41)


def test_shapes_tell_the_size_where_nothing_else_does() -> None:
    table = calls_of(read_real("hta_sampled_2rank/rank-0.json.gz"))

    rows = list(zip(table["op"].tolist(), table["bytes"].tolist(), strict=True))
    assert rows[:4] == [
        ("all_to_all", 3072),
        ("all_to_all", 419_430_400),
        ("all_reduce", 19_618_307 * 4),
        ("all_reduce", 26_955_536 * 4),
    ]
    assert len(rows) == 10
    assert table["group"].tolist() == [""] * 10
    assert table["order"].tolist() == [0, 1, 2, 3, 0, 4, 5, 6, 7, 1]


def test_groups_of_which_the_list_is_cut_off_are_still_told_apart() -> None:
    tables, _ = simulate(Job(ranks=80, tp=40, steps=2, layers=1))

    table = compare_tables(tables).get("collectives")

    assert sorted(set(table["group_size"].tolist())) == [2, 40, 80]
    assert (table["ranks"] == table["group_size"]).all()


def test_members_of_a_group_that_only_the_list_of_groups_names() -> None:
    told = {name: value for name, value in TOLD.items() if name != "Process Group Ranks"}
    groups = [{"pg_name": "3", "ranks": [1, 5, 9, 13, 17, 21, 25, 29]}, {"pg_name": "0"}]
    trace = make_trace(
        [make_event("kernel", "ncclDevKernel_AllGather_RING_LL", 40, 60, **PLACE, **told)],
        distributedInfo={"rank": 1, "pg_config": groups},
    )

    assert row_of(trace)["members"] == "1-29/4"


def test_sends_and_receives_have_a_peer_and_are_no_collectives() -> None:
    tables, _ = simulate(Job(ranks=4, pp=2, steps=2, layers=1))

    calls = tables[0].tables[CALLS]
    sends = calls["op"] == "send"
    assert sends.sum() == 2
    assert calls["peer"][sends].tolist() == [1, 1]
    assert set(compare_tables(tables).get("collectives")["op"].tolist()).isdisjoint(
        {"send", "recv"}
    )


def test_uneven_exchange() -> None:
    tables, _ = simulate(Job(ranks=4, moe=True, steps=6))

    table = compare_tables(tables).get("alltoall")

    assert table["rank"].tolist() == [0, 1, 2, 3]
    assert table["share"].sum() == pytest.approx(1)
    assert table["imbalance"].mean() == pytest.approx(1)
    given = [one.tables[CALLS] for one in tables]
    sizes = [int(one["bytes"][one["op"] == "all_to_all"].sum()) for one in given]
    assert table["bytes"].tolist() == sizes
    assert table["times_most"].sum() == table["calls"][0] == 24


def test_rates_of_transfers() -> None:
    tables, _ = simulate(Job(ranks=8, steps=2, jitter_us=0, end_jitter_us=0))

    table = compare_tables(tables).get("collectives")

    took = 120_000 + 134_217_728 // 400
    is_large = table["bytes"] == 134_217_728
    assert table["transfer_ns"][is_large] == pytest.approx(took, rel=0.01)
    assert table["algbw_gbps"][is_large] == pytest.approx(134_217_728 / took, rel=0.01)
    assert table["busbw_gbps"][is_large] == pytest.approx(134_217_728 / took * 1.75, rel=0.01)
    groups = compare_tables(tables).get("collective_groups")
    assert sorted(groups["calls"].tolist()) == [2, 8]
    assert groups["nodes"].tolist() == [-1, -1]


@pytest.mark.parametrize("value", [-1, 1e300, "x", None, [1], {"a": 1}, True, 2**70])
def test_bad_values_are_unknown(value: object) -> None:
    told = dict.fromkeys(TOLD, value)

    trace = make_trace(
        [make_event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 9, **PLACE, **told)],
        distributedInfo={"rank": 0, "world_size": 2},
    )

    row = row_of(trace)
    assert row["op"] == "all_reduce"
    assert row["group_size"] in {-1, 1}
    assert row["bytes"] == -1
    compare_ranks([trace])


@given(st.sets(st.integers(0, 2000), max_size=40))
def test_members_are_read_as_they_were_written(ranks: set[int]) -> None:
    members = tuple(sorted(ranks))

    assert read_members(write_members(members)) == members


def test_lists_of_members() -> None:
    assert read_member_list("[3, 1, 2]") == (1, 2, 3)
    assert read_member_list("[0, 1, 2, ...]") == ()
    assert read_member_list("[99999999999]") == ()
    assert read_members("0-9/0") == ()
    assert read_members("1-99999999") == ()
    assert number_text("a", 1) == number_text("a", 1) != number_text("a1")


JOB = """
import sys
import time
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    for _ in range(12):
        time.sleep(0.08 if rank == 1 else 0.01)
        dist.all_reduce(torch.ones(4096))
profiler.export_chrome_trace(f"{sys.argv[1]}/rank{rank}.json")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_real_job_on_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    subprocess.run(
        [*command, str(tmp_path / "job.py"), str(tmp_path)],
        check=True,
        timeout=240,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    traces = [read_trace_file(tmp_path / f"rank{rank}.json") for rank in range(4)]

    summary = compare_ranks(traces)

    table = summary.get("collectives")
    assert table["op"].tolist() == ["all_reduce"] * 12
    assert set(table["group"].tolist()) == {"0"}
    assert set(table["bytes"].tolist()) == {16_384}
    assert table["ranks"].tolist() == [4] * 12
    straggler = summary.get("straggler")
    assert straggler["rank"].tolist() == [1]
    assert straggler["cause"].tolist() == ["host"]
    # Twelve times 70 ms, on a machine that may have more to do.
    assert 0.5e9 < straggler["late_ns"][0] < 1.5e9
