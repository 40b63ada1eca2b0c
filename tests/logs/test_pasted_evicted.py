"""Workloads that queues of Kubernetes take back, beside ranks that lose their peers by it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

LOST = (
    "[rank6]: torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1275, "
    "remote process exited or there was a network error, NCCL version 2.21.5"
)
ADMITTED = (
    "  Normal  QuotaReserved  {0}  kueue-admission  Quota reserved in ClusterQueue lab-cq, wait "
    "time since queued was 12s"
)
TAKEN = [
    (
        "  Normal  EvictedDueToPreempted  4m2s  kueue-workload-controller  Preempted to "
        "accommodate a workload (UID: 11aa, JobUID: 22bb) due to prioritization in the ClusterQueue"
    ),
    (
        "4m  Normal  EvictedDueToPreempted  workload/job-sft-3f1  Preempted to accommodate a "
        "workload (UID: 11aa) due to reclamation within the cohort"
    ),
    "  Normal  EvictedDueToClusterQueueStopped  4m  kueue-admission  The ClusterQueue is stopped",
    "  Warning  EvictedDueToDeactivated  4m  kueue-admission  The workload is deactivated",
    "  Normal  Evict  4m  volcano  Pod is evicted, because of preempt",
    "  Type: DisruptionTarget  Reason: PreemptionByScheduler  Status: True",
]


@pytest.mark.parametrize("line", TAKEN)
@pytest.mark.parametrize("is_below", [True, False])
def test_workload_that_its_queue_took_back_was_preempted(
    tmp_path: Path, line: str, *, is_below: bool
) -> None:
    told = [ADMITTED.format("2h"), line]
    report = say(tmp_path, *([LOST, *told] if is_below else [*told, LOST]))
    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("C207", [])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([ADMITTED.format("2h")], id="admitted"),
        pytest.param([TAKEN[0], ADMITTED.format("1m")], id="again"),
        pytest.param(
            ["  Warning  Pending  4m  kueue-admission  Pending the preemption of 1 workload(s)"],
            id="waits",
        ),
        pytest.param(
            ["  Normal  EvictedDueToPodsReadyTimeout  4m  kueue  Exceeded the PodsReady timeout"],
            id="never-ready",
        ),
        pytest.param(["INFO preemption is off: EvictedDueTo* events are not watched"], id="words"),
    ],
)
def test_other_words_of_queues_end_nothing(tmp_path: Path, lines: list[str]) -> None:
    assert all(one.code != "C207" for one in say(tmp_path, *lines, LOST).findings)


def test_workload_of_a_job_that_is_well_is_nothing(tmp_path: Path) -> None:
    assert (
        say(tmp_path, ADMITTED.format("2h"), "step 10 loss 2.1", "step 11 loss 2.0").findings == []
    )
