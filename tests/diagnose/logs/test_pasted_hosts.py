"""Pastes of several hosts, of warnings that were over soon, and of one wait that is told twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.jobs import first, tell

from whystuck.diagnose import codes

PEERS = "".join(
    f"2025-08-22T03:07:41.220Z h100-b04 trainer[31{rank}]: [rank{rank}]: RuntimeError: "
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
    f"[10.40.2.3]:3811{rank}\n"
    for rank in (8, 9)
)
KILLED = (
    "[Fri Aug 22 03:07:38 2025] memory: usage 943718400kB, limit 943718400kB, failcnt 28114\n"
    "[Fri Aug 22 03:07:38 2025] Memory cgroup out of memory: Killed process 91026 (python3) "
    "total-vm:392844088kB, anon-rss:244091644kB, file-rss:0kB, shmem-rss:0kB, UID:0\n"
)
ENDED = (
    "INFO: launched local_rank=6 rank=6 pid=91026\n"
    "E0822 03:07:40.551000 90988 torch/distributed/elastic/multiprocessing/api.py:869] failed "
    "(exitcode: -9) local_rank: 6 (pid: 91026) of binary: /usr/bin/python3\n"
)


@pytest.mark.parametrize("head", ["$ ssh h100-b03 'dmesg -T | tail'", "dmesg of h100-b03:"])
def test_host_of_a_kernel_is_that_above_it_and_not_the_one_of_other_lines(
    tmp_path: Path, head: str
) -> None:
    found = first(tmp_path, {"paste.txt": f"{PEERS}\n{head}\n{KILLED}\n{ENDED}"})

    assert found.code == codes.HOST_OUT_OF_MEMORY
    assert found.culprits.nodes == ["h100-b03"]


STALL = (
    "[1,0]<stderr>:[2025-01-08 01:02:31.201020: W /tmp/horovod/common/stall_inspector.cc:107] One "
    "or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and "
    "are waiting for remainder of ranks for more than 60 seconds.\n"
    "[1,0]<stderr>:Missing ranks:\n[1,0]<stderr>:3: [broadcast.conv1.weight]\n"
)
BAR = "[1,{0}]<stdout>:Train Epoch #{1}: {2}%|###| 125/1251 [00:44<06:30, 2.88it/s, loss=6.81]\n"


def test_a_rank_that_was_late_once_is_not_blamed_where_those_that_waited_go_on(
    tmp_path: Path,
) -> None:
    later = "".join(BAR.format(0, epoch, part) for epoch in (1, 2) for part in (10, 60, 100))
    assert tell(tmp_path, {"job.log": STALL + later}).findings == []


def test_a_rank_that_others_still_wait_for_is_blamed(tmp_path: Path) -> None:
    before = "".join(BAR.format(0, 1, part) for part in (10, 60, 99))
    found = first(tmp_path, {"job.log": before + STALL})

    assert (found.code, found.culprits.ranks) == (codes.RANK_NEVER_JOINED, [3])
