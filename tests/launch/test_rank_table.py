"""Which process is which rank, over the life of a job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.probe.kineto.fabric import wait_until

from whystuck.launch.rank_table import KEPT_ATTEMPTS, RankTable

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def start_with_pid(pid: int) -> subprocess.Popen[bytes]:
    """Start a process that has the pid of one that is gone; skips where that cannot be."""
    for _ in range(200):
        try:
            LAST_PID.write_text(str(pid - 1))
        except OSError:
            break
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        if process.pid == pid:
            return process
        process.communicate()
    pytest.skip("choosing a pid needs root, and no other process that takes it")


def test_a_pid_that_comes_again_is_another_process(tmp_path: Path) -> None:
    """A job of weeks that starts many ranks comes round; one seen ended would never be watched."""
    table = RankTable(tmp_path, "n1")
    table.start()
    first = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    table.add(rank=0, pid=first.pid, world_size=1, is_member=True)
    first.communicate()
    wait_until(lambda: table.exits() != {})
    # What it said before its end may be heard later.
    table.add(rank=0, pid=first.pid, world_size=1, is_member=True)
    assert (table.attempt, len(table.all_processes())) == (0, 1)

    second = start_with_pid(first.pid)
    try:
        table.add(rank=0, pid=second.pid, world_size=1, is_member=True)
        assert (table.attempt, table.all_pids()) == (1, [second.pid])
        assert [one.is_alive for one in table.all_processes()] == [False, True]
    finally:
        second.communicate()
    wait_until(lambda: all(not one.is_alive for one in table.all_processes()))


def test_ranks_of_long_ago_are_forgotten(tmp_path: Path) -> None:
    """A script that starts a job each minute for weeks has hundreds of thousands."""
    table = RankTable(tmp_path, "n1")
    table.start()
    no_pid = 1 << 30
    for number in range(KEPT_ATTEMPTS + 50):
        table.add(rank=0, pid=no_pid + number, world_size=1, is_member=True)
    wait_until(lambda: not table.all_pids())
    assert table.attempt == KEPT_ATTEMPTS + 49
    assert KEPT_ATTEMPTS <= len(table.all_processes()) <= KEPT_ATTEMPTS + 1
    assert table.exits(table.attempt - KEPT_ATTEMPTS + 1).keys() == {0}
