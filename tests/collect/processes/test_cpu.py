"""What processors real processes get, and how many their threads want."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from whystuck.collect.processes.cpu import CpuTracker, _RankCpu
from whystuck.evidence.nodes.records import CpuRecord

# Threads that hash without the GIL, until their input is closed.
JOB = """
import hashlib, sys, threading
data = bytes(1 << 20)
def work():
    while True:
        hashlib.sha256(data).digest()
for _ in range({threads}):
    threading.Thread(target=work, daemon=True).start()
print(flush=True)
sys.stdin.read()
"""
SECOND_NS = 1_000_000_000


@contextmanager
def _process(threads: int) -> Iterator[int]:
    code = JOB.format(threads=threads)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def _look_for(pid: int, until_ns: int) -> CpuRecord:
    """Look until threads were measured for so long."""
    rank = _RankCpu(pid, CpuRecord(pid=pid))
    while rank.record.demand_over_ns < until_ns:
        rank.next_group_ns = 0
        rank.look(0.0)
    return rank.record


def test_threads_that_run_or_wait_to_run_are_counted() -> None:
    with _process(threads=5) as pid:
        record = _look_for(pid, SECOND_NS)

    demand = record.demand_ns / record.demand_over_ns
    assert 4 < demand < 6
    assert 4 < record.busy_ns / record.demand_over_ns < 6
    assert record.cores == len(os.sched_getaffinity(0))


def test_threads_that_sleep_want_nothing() -> None:
    with _process(threads=0) as pid:
        record = _look_for(pid, SECOND_NS // 2)

    assert record.demand_ns < record.demand_over_ns / 10


def test_process_that_is_gone_tells_nothing() -> None:
    with _process(threads=0) as pid:
        pass
    tracker = CpuTracker("n0")
    tracker.look([pid], 1.0)

    record = tracker.find(pid)
    assert record is not None
    assert (record.points, record.demand_over_ns) == ([], 0)
