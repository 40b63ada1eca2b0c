"""mpirun that lost its daemon on a host: the network, the host or the daemon may have failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Confidence, Verdict

LOST = {
    "orte": ["ORTE has lost communication with a remote daemon.", "  [[4100,0],3] on node b12"],
    "prte": ["PRTE has lost communication with a remote daemon.", "  prterun-l1-77@3 on node b12"],
}
KERNEL = "Jun  3 11:02:41 b12 kernel: mce: [Hardware Error]: Machine check events logged"
PANIC = "Jun  3 11:02:44 b12 kernel: Kernel panic - not syncing: Fatal machine check"
SLURM = (
    "slurmstepd: error: *** STEP 81.0 ON b11 CANCELLED AT 2025-06-03T11:03:01 DUE TO NODE FAILURE"
)


def lose(form: str) -> list[str]:
    head, daemon = LOST[form]
    return [head, f"  Remote daemon: {daemon.strip()}", "therefore will terminate the job."]


@pytest.mark.parametrize("form", LOST)
@pytest.mark.parametrize("more", [[], ["[1,0]<stdout>:epoch 3 it 40 loss 2.1"]])
def test_why_mpirun_lost_a_host_is_open(tmp_path: Path, form: str, more: list[str]) -> None:
    report = say(tmp_path, *lose(form), *more)

    assert report.verdict is Verdict.INCONCLUSIVE
    told = next(one for one in report.findings if one.code == "C208")
    assert (told.confidence, told.culprits.ranks) == (Confidence.POSSIBLE, [])
    assert "b12" in told.summary


def test_kernel_of_that_host_tells_why(tmp_path: Path) -> None:
    report = say(tmp_path, KERNEL, PANIC, *lose("orte"))
    told = report.findings[0]

    assert (told.code, told.culprits.nodes) == ("C208", ["b12"])
    assert told.confidence is not Confidence.POSSIBLE


def test_scheduler_that_lost_a_host_is_believed(tmp_path: Path) -> None:
    told = say(tmp_path, SLURM).findings[0]

    assert (told.code, told.confidence) == ("C208", Confidence.LIKELY)
