"""What processors ranks get: run time, wait in the run queue, time taken by a quota, stops."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from whystuck.collect.processes.proc_files import (
    list_threads,
    read_cgroups,
    read_small,
    read_state,
)
from whystuck.collect.processes.tracker import Tracker
from whystuck.evidence.nodes.records import CpuRecord

_CGROUPS = Path("/sys/fs/cgroup")
_MAX_POINTS = 512
# A look takes about 25 microseconds a process.
_EVERY_S = 1.0
_GROUP_EVERY_NS = 10_000_000_000
_COST_SHARE = 0.002
# Threads take a look as long as a process does.
_MAX_THREADS = 256
# Who runs, or waits to run, for a thirtieth of the time has something to do.
_BUSY_PART = 30
_UNKNOWN = -1
_STOPPED = "T"


@dataclass
class _RankCpu:
    """What was seen of one rank; when there are many points, every other one is left out."""

    pid: int
    record: CpuRecord
    stat: Path | None = None
    every_ns: int = 0
    next_ns: int = 0
    next_group_ns: int = 0
    # How long it had run by the last look, where it was stopped then.
    stopped_run_ns: int = _UNKNOWN
    # When its threads were looked at, and how long each had run or waited to run by then.
    threads_ns: tuple[int, dict[str, int]] = (0, {})
    windows: int = 0

    def look(self, now_s: float) -> None:  # noqa: ARG002 - its points have wall clock
        """Take one point; nothing when the process is gone."""
        now_ns = time.time_ns()
        if now_ns < self.next_ns:
            return
        if now_ns >= self.next_group_ns:
            self.next_group_ns = now_ns + _GROUP_EVERY_NS
            self._find_group()
            self._see_threads(now_ns)
        times = _read_times(self.pid)
        if times is None:
            return
        run_ns, delay_ns = times
        self._see_stop(run_ns)
        points = self.record.points
        points.append((now_ns, run_ns, delay_ns, _read_throttled_ns(self.stat)))
        if len(points) > _MAX_POINTS:
            del points[1::2]
            self.every_ns = max(2 * self.every_ns, int(2e9 * _EVERY_S))
        self.next_ns = now_ns + self.every_ns

    def _see_stop(self, run_ns: int) -> None:
        """Count whether a signal has stopped the process: that is no wait for a processor.

        One that was stopped at the look before and has run since then went on in between.
        """
        is_stopped = read_state(self.pid) == _STOPPED
        self.record.looks += 1
        self.record.stopped += is_stopped
        self.record.resumed += self.stopped_run_ns not in {_UNKNOWN, run_ns}
        self.stopped_run_ns = run_ns if is_stopped else _UNKNOWN

    def _see_threads(self, now_ns: int) -> None:
        """Add what its threads asked for since the last time, of those that were there then."""
        then_ns, before = self.threads_ns
        threads = list_threads(self.pid)
        now = {
            thread: sum(times)
            for thread in threads[:_MAX_THREADS]
            if (times := _read_times(f"{self.pid}/task/{thread}"))
        }
        self.threads_ns = now_ns, now
        passed_ns = now_ns - then_ns
        # The first time is that of imports.
        if now and self.windows > 0:
            wanted = [max(0, now[one] - before[one]) for one in now.keys() & before.keys()]
            busy = sum(_BUSY_PART * one >= passed_ns for one in wanted)
            self.record.demand_ns += sum(wanted) * len(threads) // len(now)
            self.record.busy_ns += busy * passed_ns * len(threads) // len(now)
            self.record.demand_over_ns += passed_ns
        self.windows += 1 if before else 0
        with suppress(OSError):
            self.record.cores = len(os.sched_getaffinity(self.pid))

    def _find_group(self) -> None:
        """Find the cgroup; a launcher may move a process after its start."""
        paths = read_cgroups(self.pid)
        group = paths.get("cpu", paths.get("", ""))
        if not paths or group == self.record.cgroup:
            return
        # What another cgroup was stopped for is no measure of this one.
        self.record.points = [(*point[:3], _UNKNOWN) for point in self.record.points]
        self.record.cgroup, self.stat = group, _find_stat(paths)


class CpuTracker(Tracker[_RankCpu]):
    """Looks at the main thread of all ranks of a node once a second."""

    def __init__(self, node: str) -> None:
        super().__init__(
            lambda pid: _RankCpu(pid, CpuRecord(pid=pid, node=node)), _EVERY_S, _COST_SHARE
        )

    def find(self, pid: int) -> CpuRecord | None:
        """Return what is known of a process, or None."""
        known = self._by_pid.get(pid)
        return None if known is None else known.record


def _read_times(process: int | str) -> tuple[int, int] | None:
    """Return how long a thread has run, and waited in the run queue; None when it is gone."""
    try:
        run_ns, delay_ns, *_ = map(int, read_small(process, "schedstat").split())
    except (OSError, ValueError):
        return None
    return run_ns, delay_ns


def _find_stat(paths: dict[str, str]) -> Path | None:
    """Return the file that tells of the quota of a process, of version 1 or 2; None if unknown."""
    roots = [(_CGROUPS / "cpu", paths.get("cpu")), (_CGROUPS, paths.get(""))]
    for root, path in roots:
        # A path that leaves the root is that of a process in another namespace of cgroups.
        if path and ".." not in path.split("/"):
            stat = root / path.lstrip("/") / "cpu.stat"
            if stat.is_file():
                return stat
    return None


def _read_throttled_ns(stat: Path | None) -> int:
    """Return for how long a quota has stopped the cgroup so far, -1 when unknown."""
    try:
        lines = stat.read_text().splitlines() if stat is not None else []
    except OSError:
        return _UNKNOWN
    for line in lines:
        name, _, value = line.partition(" ")
        if name in {"throttled_time", "throttled_usec"} and value.isdigit():
            return int(value) * (1000 if name == "throttled_usec" else 1)
    return _UNKNOWN
