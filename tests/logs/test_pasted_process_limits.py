"""Limits of processes that somebody printed beside threads and workers that could not start."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

FORK = [
    "Traceback (most recent call last):",
    '  File "/v/lib/torch/utils/data/dataloader.py", line 1041, in __init__',
    "    w.start()",
    '  File "/usr/lib/python3.10/multiprocessing/popen_fork.py", line 66, in _launch',
    "    self.pid = os.fork()",
    "BlockingIOError: [Errno 11] Resource temporarily unavailable",
]
THREAD = [
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.10/threading.py", line 935, in start',
    "    _start_new_thread(self._bootstrap, ())",
    "RuntimeError: can't start new thread",
]
FELT = {
    "fork": FORK,
    "thread": THREAD,
    "openmp": ["libgomp: Thread creation failed: Resource temporarily unavailable"],
}
SHOWN = {
    "blas": ["OpenBLAS blas_thread_init: RLIMIT_NPROC 2048 current, 4096 max"],
    "shell": ["[me@cn4 ~]$ ulimit -u", "2048"],
    "all": ["max user processes              (-u) 2048"],
    "kernel": ["$ cat /proc/881/limits", "Max processes             2048       4096     processes"],
    "group": ["$ cat /sys/fs/cgroup/pids.max", "2048"],
    "prlimit": ["NPROC      max number of processes                    2048      4096 processes"],
}


@pytest.mark.parametrize("felt", FELT)
@pytest.mark.parametrize("shown", SHOWN)
def test_low_limit_of_processes_that_was_felt_is_told(
    tmp_path: Path, felt: str, shown: str
) -> None:
    finding = first_of(say(tmp_path, *SHOWN[shown], "", *FELT[felt]))

    assert (finding.name, finding.culprits.ranks) == ("limits-low", [])
    assert "2048 processes" in finding.summary


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(SHOWN["shell"], id="not felt"),
        pytest.param([*FORK, "$ ulimit -u", "unlimited"], id="no limit"),
        pytest.param([*FORK, "max user processes              (-u) 1029344"], id="high"),
        pytest.param([*FORK, "$ ulimit -n", "1024"], id="another one"),
        pytest.param([*FORK, "we run 2048 processes"], id="words"),
        pytest.param(
            [
                *SHOWN["all"],
                *FORK[:1],
                '  File "/v/net.py", line 8, in read',
                "    sock.recv(8)",
                FORK[-1],
            ],
            id="a socket",
        ),
    ],
)
def test_limits_that_broke_nothing(tmp_path: Path, lines: list[str]) -> None:
    assert "limits-low" not in {one.name for one in say(tmp_path, *lines).findings}
