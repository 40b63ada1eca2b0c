"""Memory of ranks: real processes, and a series that never grows beyond its bound."""

from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from whystuck.collect.processes.memory import MemoryTracker, RankMemory

MIB = 1 << 20
# Says when it is ready, and lives until its input is closed.
HOLD = """
import resource, subprocess, sys
{before}
held = bytearray({mib} << 20)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def _process(mib: int, before: str = "") -> Iterator[int]:
    code = HOLD.format(mib=mib, before=before)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.stdin.close()


def test_look_when_a_process_holds_memory_then_says_how_much() -> None:
    with _process(100) as pid:
        watched = RankMemory(pid, "n0")
        watched.look(0.0)
        record = watched.make_record()
    (point,) = record.points
    assert abs(point[0] - time.time_ns()) < 60e9
    assert 100 * MIB < point[1] < 200 * MIB
    assert point[2] > point[1]
    assert record.peak >= point[1]
    assert (record.pid, record.node, record.address_limit) == (pid, "n0", 0)


def test_look_when_a_limit_is_set_then_has_it() -> None:
    limit = 4 << 30
    before = f"resource.setrlimit(resource.RLIMIT_AS, ({limit}, resource.RLIM_INFINITY))"
    with _process(1, before) as pid:
        watched = RankMemory(pid, "n0")
        watched.look(0.0)
    assert watched.record.address_limit == limit
    assert watched.record.data_limit == max(0, resource.getrlimit(resource.RLIMIT_DATA)[0])


def test_look_when_a_worker_holds_the_memory_then_it_is_below() -> None:
    child = "x = bytearray(80 << 20); print(1, flush=True); import sys; sys.stdin.read()"
    before = (
        f"p = subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE, "
        "stdout=subprocess.PIPE); p.stdout.readline()"
    )
    with _process(1, before) as pid:
        watched = RankMemory(pid, "n0")
        watched.look(0.0)
        (point,) = watched.make_record().points
    assert point[3] > 80 * MIB > point[1]
    assert len(watched.record.worker_pids) == 1


def test_series_when_it_is_long_then_is_bounded_and_dense_at_the_end() -> None:
    watched = RankMemory(os.getpid(), "n0")
    step_ns = 200_000_000
    for number in range(200_000):  # eleven hours
        watched.add((number * step_ns, number, 0, 0))
    points = watched.make_record().points
    times = [point[0] for point in points]
    assert times == sorted(set(times))
    assert len(points) < 400
    assert times[0] == 0
    assert times[-1] - times[-100] == 99 * step_ns
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert max(gaps) < 400e9
    assert watched.record.peak >= 199_999


def test_tracker_when_processes_are_gone_then_goes_on() -> None:
    tracker = MemoryTracker("n0")
    with _process(1) as pid:
        tracker.look([pid, 2**22 + 1], 0.0)
    tracker.look([pid, os.getpid()], 10.0)
    kept = tracker.find(pid)
    assert kept is not None
    assert len(kept.points) == 1
    assert tracker.find(2**22 + 1) is not None
    assert tracker.find(1) is None


def test_look_when_a_process_has_ended_but_is_not_reaped_then_adds_no_point() -> None:
    """It holds no memory any more, which would look as if it had let go of it."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        watched = RankMemory(process.pid, "n0")
        watched.look(0.0)
    assert watched.make_record().points == []


def test_tracker_forgets_what_is_over() -> None:
    tracker = MemoryTracker("n0")
    tracker.look([os.getpid(), os.getppid()], 0.0)
    tracker.keep({os.getpid()})
    assert tracker.find(os.getpid()) is not None
    assert tracker.find(os.getppid()) is None


def test_tracker_when_looks_cost_much_then_they_come_later() -> None:
    tracker = MemoryTracker("n0")
    own = os.getpid()
    tracker.look([own], 100.0)
    tracker.look([own], 100.1)  # too soon
    record = tracker.find(own)
    assert record is not None
    assert len(record.points) == 1
    tracker.look([own], 200.0)
    assert len(tracker.find(own).points) == 2  # type: ignore[union-attr]
