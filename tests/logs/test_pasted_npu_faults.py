"""Kernels of NPUs that fail, as the runtime of CANN and torch_npu tell it, and ranks that wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

WAIT = (
    "EI0002: [PID: 4101] 2026-03-08-11:32:10.120.004 The wait execution of the Notify register "
    "times out. Reason: The Notify register has not received the Notify record from remote rank "
    "[{0}]."
)
OWN = (
    "[ERROR] 2026-03-08-11:02:10 (PID:410{0}, Device:{0}, RankID:{0}) "
    "ERR00100 PTA call acl api failed"
)
FAILED = {
    "plog": (
        "[ERROR] RUNTIME(410{0},python):2026-03-08-11:02:09.331.118 [task_info.cc:1190]5120 "
        "PrintErrorInfo:Aicore kernel execute failed, device_id={0}, stream_id=4, "
        "report_stream_id=4, task_id=211, flip_num=0, fault kernel_name={1}, program id=12, hash=9"
    ),
    "rank": (
        "[rank{0}]:        Aicore kernel execute failed, device_id={0}, stream_id=4, "
        "report_stream_id=4, task_id=211, flip_num=0, fault kernel_name={1}, fault kernel info "
        "ext=none, program id=12, hash=9.[FUNC:GetError][FILE:stream.cc][LINE:1183]"
    ),
}


@pytest.mark.parametrize("form", FAILED)
def test_rank_whose_kernel_failed_is_named_and_who_waits_for_it_is_not(
    tmp_path: Path, form: str
) -> None:
    lines = [WAIT.format(2), "--- plog of device 2", FAILED[form].format(2, "MatMulV2_9f_1")]
    finding = first_of(say(tmp_path, *lines, OWN.format(2)))

    assert (finding.name, finding.culprits.ranks) == ("device-fault", [2])


@pytest.mark.parametrize("kernel", ["MoeDistributeDispatchV2_ND_1", "hcom_allReduce__701"])
def test_kernel_of_a_collective_that_failed_is_no_fault_of_its_device(
    tmp_path: Path, kernel: str
) -> None:
    report = say(tmp_path, *(FAILED["rank"].format(rank, kernel) for rank in (1, 3)))

    assert "device-fault" not in {one.name for one in report.findings}


def test_text_about_kernels_is_no_failure(tmp_path: Path) -> None:
    text = "[rank1]: INFO retry when an Aicore kernel execute failed message appears"
    report = say(tmp_path, text, WAIT.format(2))

    assert "device-fault" not in {one.name for one in report.findings}
