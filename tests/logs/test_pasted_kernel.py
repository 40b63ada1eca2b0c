"""Kernel logs without the name of a host beside what a launcher says of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

ENDED = """\
E0611 03:14:58.711000 1 torch/distributed/elastic/multiprocessing/api.py:869] failed \
(exitcode: -9) local_rank: {0} (pid: 80) of binary: /opt/conda/bin/python
Root Cause (first observed failure):
[0]:
  time      : 2025-06-11_03:14:52
  host      : llm-worker-0
  rank      : {0} (local_rank: {0})
  exitcode  : -9 (pid: 80)
  traceback : Signal 9 (SIGKILL) received by PID 80"""
KILLS = {
    "cgroup": (
        "[1187345.222391] Memory cgroup out of memory: Killed process 2910433 ({0}) "
        "total-vm:412338212kB, anon-rss:118220340kB, file-rss:71200kB, UID:0"
    ),
    "host": "[ 9121.331000] Out of memory: Killed process 2910433 ({0}) total-vm:6kB, anon-rss:4kB",
    "constraint": (
        "[9121.331] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/kubepods,"
        "task_memcg=/kubepods/pod7,task={0},pid=2910433,uid=0"
    ),
}


def judge(folder: Path, *lines: str, ended: Sequence[int] = (3,)) -> Report:
    told = [ENDED.format(rank) for rank in ended]
    return say(folder, "pod restarts every 3 h", *told, "the node log says:", *lines)


@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize("rank", [0, 3])
def test_kernel_of_the_only_host_killed_the_rank_that_was_killed(
    tmp_path: Path, kill: str, rank: int
) -> None:
    finding = first_of(judge(tmp_path, KILLS[kill].format("python3"), ended=[rank]))

    assert (finding.code, finding.culprits.ranks) == ("C202", [rank])
    assert finding.confidence == "likely"


@pytest.mark.parametrize(
    ("lines", "ended"),
    [
        pytest.param([KILLS["cgroup"].format("mysqld")], [3], id="another program"),
        pytest.param([], [3], id="no kernel log"),
        pytest.param([KILLS["host"].format("python")], [2, 3], id="two ranks"),
        pytest.param(
            [
                KILLS["host"].format("python"),
                "(RayTrainWorker pid=4410, ip=10.0.3.7) [rank 5] step 1",
                "(RayTrainWorker pid=4411, ip=10.0.3.8) [rank 6] step 1",
            ],
            [3],
            id="another host",
        ),
    ],
)
def test_kernel_that_may_have_killed_another_process_names_no_rank(
    tmp_path: Path, lines: list[str], ended: list[int]
) -> None:
    report = judge(tmp_path, *lines, ended=ended)

    assert all(one.code != "C202" or not one.culprits.ranks for one in report.findings)


def test_number_of_the_process_still_tells_for_sure(tmp_path: Path) -> None:
    kill = KILLS["host"].format("python").replace("2910433", "80")
    finding = first_of(judge(tmp_path, kill))

    assert (finding.code, finding.culprits.ranks) == ("C202", [3])
    assert finding.confidence == "certain"
