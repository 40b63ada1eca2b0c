"""Dumps of a job that was running when they were written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.diagnose.dumps import NCCL, OP_NS, STARTED, Dumps
from tests.diagnose.scenes import MODULE, at

from whystuck.evidence.finding import Confidence, Severity, Verdict
from whystuck.pipeline import diagnose_paths

LOSS = (at("/job/train.py", 22), MODULE)
SECOND_NS = 1_000_000_000


def write(folder: Path, age_ns: int) -> None:
    """Write dumps in which rank 2 has not come yet to the last op, so long after that op."""
    dumps = Dumps(form=NCCL).op(range(4), "all_reduce", LOSS, times=20)
    dumps.op([0, 1, 3], "all_reduce", LOSS, state=STARTED)
    dumps.write(folder)
    for rank in range(4):
        newest_ns = dumps.clock_ns[rank] + OP_NS + age_ns
        os.utime(folder / f"nccl_trace_rank_{rank}", ns=(newest_ns, newest_ns))


def test_job_that_may_have_moved_when_it_was_dumped_is_only_doubted(tmp_path: Path) -> None:
    write(tmp_path, age_ns=SECOND_NS // 5)
    report = diagnose_paths([tmp_path])
    (finding,) = report.findings

    assert report.verdict is Verdict.INCONCLUSIVE
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    assert "dumps of a job that hangs" in [gap.what for gap in report.gaps]


@pytest.mark.parametrize("age_ns", [10 * SECOND_NS, -SECOND_NS])
def test_pending_op_that_is_old_or_of_unknown_age_is_a_stall(age_ns: int, tmp_path: Path) -> None:
    write(tmp_path, age_ns)

    assert [item.code for item in diagnose_paths([tmp_path]).findings] == ["H101"]
