"""How sure a rank is that no text names: only its local rank, on one host of perhaps many."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Confidence

XID = (
    "[Wed Sep 10 02:07:11 2025] NVRM: Xid (PCI:0000:bd:00): 119, pid=51106, name=python, Timeout "
    "after 6s of waiting for RPC response from GPU6 GSP! Expected function 76 (GSP_RM_CONTROL)."
)
KILLED = (
    "[Wed Sep 10 02:07:11 2025] Memory cgroup out of memory: Killed process 51106 (python) "
    "total-vm:1kB, anon-rss:9kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0"
)
PS = [f" 5110{one} Sl   -      python train.py --local-rank {one}" for one in range(8)]
LAUNCHED = [f"process 5110{one} spawned with command: x --local_rank={one}" for one in range(8)]


@pytest.mark.parametrize("line", [XID, KILLED], ids=["device", "memory"])
@pytest.mark.parametrize("table", [PS, LAUNCHED], ids=["ps", "launcher"])
def test_rank_that_only_a_local_rank_tells_is_likely_at_most(
    tmp_path: Path, line: str, table: list[str]
) -> None:
    finding = first_of(say(tmp_path, "root@dgx07:~# ps -eo pid,stat,wchan,cmd", *table, line))

    assert finding.culprits.ranks == [6]
    assert finding.confidence is Confidence.LIKELY


@pytest.mark.parametrize("said", ["rank 6 is pid 51106", "world size: 8"])
def test_rank_that_a_text_tells_is_certain(tmp_path: Path, said: str) -> None:
    finding = first_of(say(tmp_path, said, *PS, XID))

    assert (finding.culprits.ranks, finding.confidence) == ([6], Confidence.CERTAIN)


def test_local_rank_beside_ranks_of_other_hosts_is_no_rank(tmp_path: Path) -> None:
    others = [f"[rank{one}]: step 4411 loss 2.1" for one in (3, 12, 14)]

    assert first_of(say(tmp_path, *others, *PS, XID)).culprits.ranks == []


SLURM = [
    "slurmstepd: error: Detected 1 oom_kill event in StepId=88211.0. Some step tasks were killed.",
    "srun: error: gpu-14: task 3: Out Of Memory",
]


def test_task_that_nothing_calls_a_rank_is_likely_at_most(tmp_path: Path) -> None:
    others = ["[rank2]: step 4411 loss 2.1", "[rank1]: step 4411 loss 2.1"]

    assert first_of(say(tmp_path, *others, *SLURM)).confidence is not Confidence.CERTAIN


def test_task_that_writes_its_rank_is_certain(tmp_path: Path) -> None:
    lines = [f"{one}: [rank{one}]: step 4411 loss 2.1" for one in range(4)]
    finding = first_of(say(tmp_path, *lines, *SLURM))

    assert (finding.culprits.ranks, finding.confidence) == ([3], Confidence.CERTAIN)
