"""Functional collectives that do not fit each other, and what gloo says of messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.diagnose.op_scenes import Logged
from tests.diagnose.scenes import MODULE, at

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Confidence, Finding, Report, Severity
from whystuck.evidence.live import ExitRecord, FatalStack, PythonException, ThreadStack
from whystuck.evidence.logs.lines import LogEvent, Logs

COMPLAINT = (
    "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 184 vs 96. "
    "Received data size doesn't match expected size."
)
FUNCTIONAL = "/venv/site-packages/torch/distributed/_functional_collectives.py"


def crash(logged: Logged, *, complaint: bool = True) -> Report:
    """Let rank 0 be aborted by gloo in a wait, and its peers lose their connections."""
    waiting = (
        at("/venv/site-packages/torch/_ops.py", 1279, "__call__"),
        at(FUNCTIONAL, 142, "wait_tensor"),
        at("/job/train.py", 30),
        MODULE,
    )
    logged.job.of_kind("exit", command_exit=1)
    known = logged.evidence()
    event = LogEvent("c10d.mismatch", "cause", "H105", "code", "n0/rank-0/log.txt", 5, COMPLAINT)
    return diagnose(
        replace(
            known,
            fatals=(FatalStack(0, "Aborted", (ThreadStack(1, "MainThread", waiting),)),),
            exits=(ExitRecord(rank=0, pid=100, signal=6),),
            exceptions=tuple(
                PythonException(rank, "RuntimeError", "Connection reset by peer", waiting)
                for rank in range(1, logged.world)
            ),
            logs=Logs(events=(replace(event, rank=0),)) if complaint else Logs(),
        )
    )


def only(report: Report) -> Finding:
    (finding,) = [one for one in report.findings if one.severity is not Severity.NOTE]
    return finding


@pytest.mark.parametrize(
    "op", ["all_gather_base_coalesced", "reduce_scatter_base_coalesced", "all_reduce_coalesced"]
)
def test_another_shape_in_a_functional_collective_is_h106(op: str) -> None:
    logged = Logged(4).steps()
    shapes: dict[str, Any] = {"in": [[12]], "out": [[48]]}
    logged.waits([0, 1, 2], op, line=30, **shapes)
    logged.waits([3], op, line=30, **shapes | {"in": [[23]]})
    report = crash(logged)
    finding = only(report)

    assert finding.code == "H106"
    assert finding.culprits.ranks == [3]
    assert finding.details["shapes"] == {"0": [12], "1": [12], "2": [12], "3": [23]}
    assert not [text for text in finding.ruled_out if "shapes" in text]


def test_an_extra_gather_that_gloo_complains_of_is_no_crash() -> None:
    logged = Logged(4).steps()
    logged.waits([0], "all_gather_base_coalesced", line=22).waits([1, 2, 3], line=10)
    finding = only(crash(logged))

    assert finding.code in {"H102", "H105"}
    assert finding.culprits.ranks == [0]


def test_torn_down_ranks_in_other_ops_are_no_mismatch_without_a_complaint() -> None:
    logged = Logged(4).steps()
    logged.waits([0], "all_gather_base_coalesced", line=22).waits([1, 2, 3], line=10)

    assert only(crash(logged, complaint=False)).code not in {"H102", "H105", "H106"}


def test_a_complaint_alone_blames_nobody() -> None:
    logged = Logged(4).steps()
    report = crash(logged)
    finding = only(report)

    assert finding.code == "H106"
    assert finding.confidence is Confidence.POSSIBLE
    assert finding.culprits.ranks == []
    assert "184 bytes where 96 were expected" in finding.summary
    assert not [text for text in finding.ruled_out if "agree" in text]


def test_ops_that_do_not_match_are_not_said_to_agree() -> None:
    logged = Logged(4).steps()
    logged.op([3], "all_reduce", line=30, **{"in": [[5]]}).op([0, 1, 2], line=30)
    logged.steps()
    logged.job.of_kind("exit", command_exit=1).ends(2, code=3)
    report = logged.report()

    assert report.findings[0].code == "C204"
    assert not [text for text in report.findings[0].ruled_out if "recorded ops agree" in text]
