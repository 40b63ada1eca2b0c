"""Processes that NCCL RAS calls dead, and kernels that say that they killed them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

DEAD = [
    "DEAD",
    "  1 job process is considered dead (unreachable via the RAS network)",
    "  Process 51877 on node 172.18.4.9 managing GPU 6",
]
LACKS = [
    "",
    "#0-0 (5d2e1c0a9b774411) INCOMPLETE",
    "  Missing communicator data from 1 rank",
    "  The missing rank: 30",
]
TABLE = [
    "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
    "    #  in group  per comm  per node  per comm  in group",
    "    0         1         8         4        32        32   RUNNING  INCOMPLETE",
    "",
    "Errors",
    "======",
    "",
]
KILL = (
    "{0}Memory cgroup out of memory: Killed process {1} (python3) total-vm:912087344kB, "
    "anon-rss:398443120kB, file-rss:91244kB, shmem-rss:10485kB, UID:1001"
)
AT = "[Tue Mar  3 04:40:51 2026] "
HEADS = {"none": [], "table": TABLE, "command": ["$ ncclras", *TABLE], "words": ["Errors", "====="]}


@pytest.mark.parametrize(
    "place",
    ["$ ssh 172.18.4.9 dmesg -T | tail -1", "root@172.18.4.9:~# dmesg -T | grep -i oom"],
)
@pytest.mark.parametrize("head", HEADS)
def test_rank_that_ras_misses_is_the_process_that_it_calls_dead(
    tmp_path: Path, head: str, place: str
) -> None:
    lines = [*HEADS[head], *DEAD, *LACKS, "", place, KILL.format(AT, 51877)]
    report = say(tmp_path, *lines)
    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("C202", [30])


@pytest.mark.parametrize(
    ("lacks", "host", "pid"),
    [
        (LACKS, "172.18.4.9", 51878),
        (LACKS, "172.18.4.10", 51877),
        ([*LACKS[:2], "  Missing communicator data from 2 ranks", "  The missing ranks: 7, 30"],
         "172.18.4.9", 51877),
        ([], "172.18.4.9", 51877),
    ],
    ids=["other process", "other host", "two ranks", "no ranks"],
)  # fmt: skip
def test_other_kills_are_of_no_rank_that_ras_misses(
    tmp_path: Path, lacks: list[str], host: str, pid: int
) -> None:
    lines = [*TABLE, *DEAD, *lacks, "", f"$ ssh {host} dmesg -T", KILL.format(AT, pid)]
    report = say(tmp_path, *lines)

    assert not any(one.code == "C202" and one.culprits.ranks for one in report.findings)


def test_two_dead_processes_are_not_told_apart(tmp_path: Path) -> None:
    dead = [DEAD[0], DEAD[1].replace("1 job process is", "2 job processes are"), DEAD[2]]
    dead.append("  Process 51880 on node 172.18.4.9 managing GPU 7")
    lacks = [*LACKS[:2], "  Missing communicator data from 2 ranks", "  The missing ranks: 30, 31"]
    shown = ["", "$ ssh 172.18.4.9 dmesg -T", KILL.format(AT, 51877)]
    report = say(tmp_path, *TABLE, *dead, *lacks, *shown)

    assert not any(one.code == "C202" and one.culprits.ranks for one in report.findings)
