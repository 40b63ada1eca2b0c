"""Tables of profilers whose kernels of communication take most of the time of a device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsSto..."
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDev..."
OLD_REDUCE = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*,..."
NOTE = "nccl:_all_gather_base"
MATMUL = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816g..."
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel..."
STEP = "ProfilerStep*"

DEVICE = ("Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg")
CPU = ("Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg")
Rows = Sequence[tuple[str, float]]
BOUND = [(GATHER, 41.32), (SCATTER, 22.04), (MATMUL, 26.6), (FLASH, 9.91)]
WELL = [(MATMUL, 61.2), (FLASH, 20.31), (GATHER, 12.4)]


def table(
    rows: Rows, device: str = "CUDA", *, is_short: bool = False, calls: str = ""
) -> list[str]:
    names = tuple(name.replace("CUDA", device) for name in DEVICE[: 2 if is_short else 4])
    heads = (*(() if is_short else CPU), *names, "# of Calls")
    line = "  ".join(["-" * 55, *("-" * 14 for _ in heads)])

    def write(name: str, share: float) -> str:
        cpu = () if is_short else ("0.00%", "0.000us", "0.00%", "0.000us", "0.000us")
        told = (f"{share * 91:.3f}ms", f"{share:.2f}%", f"{share * 91:.3f}ms", "9.101ms")
        cells = (*cpu, *told[: len(names)], "240")
        return "  ".join([f"{name:>55}", *(f"{cell:>14}" for cell in cells)])

    head = "  ".join([f"{'Name':>55}", *(f"{name:>14}" for name in heads)])
    total = f"Self {device} time total: 9.121s"
    return [line, head, line, *(write(*row) for row in rows), line, total, calls]


def nsys(rows: Rows) -> list[str]:
    head = " Time (%)  Total Time (ns)  Instances   Avg (ns)   Med (ns)  Name"
    rule = " --------  ---------------  ---------  ----------  --------  ----------------------"
    told = [
        f" {share:8.1f}  {share * 9e6:15.0f}  240  1402133.1  1401022.0  {n}" for n, share in rows
    ]
    return [" ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):", "", head, rule, *told]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(table(BOUND), id="whole"),
        pytest.param(table(BOUND, is_short=True), id="cut"),
        pytest.param(table([(OLD_REDUCE, 63.36), (MATMUL, 30.0)]), id="old name"),
        pytest.param([f"[rank0]: {line}" for line in table(BOUND)], id="prefix"),
        pytest.param(table([(STEP, 100.0), *BOUND]), id="with steps"),
        pytest.param(nsys(BOUND), id="nsys"),
    ],
)
def test_most_time_in_communication(tmp_path: Path, lines: list[str]) -> None:
    finding = first_of(say(tmp_path, "two nodes", *lines))

    assert (finding.code, finding.confidence, finding.culprits.ranks) == ("S310", "possible", [])
    assert "63 %" in finding.summary


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(table(WELL), id="computes"),
        pytest.param(table([*WELL, (NOTE, 58.0)]), id="annotation"),
        pytest.param([*table(BOUND), "rank 1:", *table(WELL)], id="another table computes"),
        pytest.param(table([(GATHER, 61.0)])[3:], id="no head"),
        pytest.param(nsys(WELL), id="nsys"),
    ],
)
def test_tables_that_tell_nothing(tmp_path: Path, lines: list[str]) -> None:
    assert say(tmp_path, *lines).findings == []


def test_rank_that_is_slow_goes_first(tmp_path: Path) -> None:
    times = [f"rank {at}: fwd {'900' if at == 2 else '410'} ms" for at in range(4)]
    codes = [one.code for one in say(tmp_path, *table(BOUND), *times).findings]

    assert codes == ["S301"]


def test_both_are_told_of_a_job_that_is_slower_as_a_whole(tmp_path: Path) -> None:
    steps = [f"step {at} loss 2.1 {900 if at < 6 else 410} tokens/s" for at in range(12)]
    codes = {one.code for one in say(tmp_path, *steps, *table(BOUND)).findings}

    assert codes == {"S304", "S310"}
