"""What torch_npu and checks of a framework raise behind a comparison, without a whole traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

RAISED = (
    "[rank{0}]: RuntimeError: InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:{1} OPS "
    "function error: {2}, error code is 5"
)
TORCH_NPU = (
    "[rank{0}]: RuntimeError: allgather:torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:{1} HCCL "
    "function error: {2}(), error code is 4"
)
APART = (
    "[rank{0}]: EI0005: 2025-01-04-08:12:40.310.118 The arguments for collective communication "
    "are inconsistent between ranks:parameter {1}, local {2}, remote {3}"
)


@pytest.mark.parametrize("form", [RAISED, TORCH_NPU])
@pytest.mark.parametrize("call", ["HcclAllReduce", "HcclAllGather", "HcclReduceScatter"])
def test_calls_that_hccl_compared_explain_what_is_raised(
    tmp_path: Path, form: str, call: str
) -> None:
    lines = [form.format(3, 197, call), APART.format(3, "count", 4096, 2048)]
    finding = first_of(say(tmp_path, *lines, "[rank3]:     Solution: check the script"))

    assert (finding.code, finding.culprits.ranks) == ("H106", [])
    assert (finding.severity, finding.confidence) == ("error", "likely")


def test_other_op_is_told_as_such(tmp_path: Path) -> None:
    lines = [RAISED.format(0, 197, "HcclAllReduce"), APART.format(0, "opType", 2, 3)]

    assert first_of(say(tmp_path, *lines)).code == "H105"


def test_call_that_nothing_compared_is_of_the_rank(tmp_path: Path) -> None:
    report = say(tmp_path, RAISED.format(2, 197, "HcclAllGather"), "[rank2]: ERR01005 internal")

    assert all(one.code not in ("H105", "H106") for one in report.findings)


FAIRSEQ = (
    "FloatingPointError: Fatal error: gradients are inconsistent between workers. Try "
    "--ddp-backend=legacy_ddp."
)
OWN = "RuntimeError: grad norms differ across ranks after the all-reduce"


def norms(*values: float) -> list[str]:
    rows = [f"rank {rank:3} = {value:.8f}" for rank, value in enumerate(values)]
    return ["-" * 40, "grad_norm across the workers:", *rows, "-" * 40]


@pytest.mark.parametrize("raised", [FAIRSEQ, OWN])
@pytest.mark.parametrize("prefix", ["", "2024-05-11 10:00:01 | ERROR | fairseq | "])
def test_rank_whose_norm_differs_is_named_below_the_check(
    tmp_path: Path, raised: str, prefix: str
) -> None:
    report = say(tmp_path, prefix + raised, *norms(1.25, 1.25, 0.875, 1.25))
    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("V501", [2])
    assert len([one for one in report.findings if one.severity == "error"]) == 1


@pytest.mark.parametrize(
    "values", [(1.25, 0.875), (1.25, 1.25, 0.875, 0.875), (1.0, 2.0, 3.0, 4.0)]
)
def test_nobody_is_named_where_most_do_not_agree(tmp_path: Path, values: tuple[float, ...]) -> None:
    finding = first_of(say(tmp_path, FAIRSEQ, *norms(*values)))

    assert (finding.code, finding.culprits.ranks) == ("V501", [])


def test_other_error_above_equal_norms_stays(tmp_path: Path) -> None:
    raised = "FloatingPointError: Minimum loss scale reached (0.0001)."
    report = say(tmp_path, raised, *norms(1.25, 1.25, 1.25))

    assert all(one.code != "V501" for one in report.findings)
