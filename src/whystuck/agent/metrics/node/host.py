"""Processors, memory and load of the node."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from whystuck.agent.metrics.families import counter, fill, gauge
from whystuck.evidence.nodes.metrics import MetricFamily, Sample

EVERY_S = 10.0
# Guest time is part of user and nice, so it is not told again.
_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_IDLE_MODES = ("idle", "iowait")
_CPU_SECONDS = counter(
    "cpu_seconds_total", "Seconds that all processors together spent in each mode.", "mode"
)
_CORE_SECONDS = counter(
    "cpu_core_seconds_total", "Seconds that one processor spent in each mode.", "cpu", "mode"
)
_PLAIN = {
    "cpus": gauge("cpus", "Processors that are online."),
    "utilization": gauge(
        "cpu_utilization_ratio", "Share of all processors that was busy since the reading before."
    ),
    "load1": gauge("load1", "Mean number of tasks that ran or waited in the last minute."),
    "load5": gauge("load5", "Mean number of tasks that ran or waited in the last 5 minutes."),
    "load15": gauge("load15", "Mean number of tasks that ran or waited in the last 15 minutes."),
    "running": gauge("procs_running", "Tasks that run or are ready to run."),
    "blocked": gauge("procs_blocked", "Tasks that wait for input or output."),
    "switches": counter("context_switches_total", "Context switches of all processors."),
    "forks": counter("forks_total", "Processes and threads started."),
    "uptime": gauge("uptime_seconds", "Seconds since the node was booted."),
    "boot": gauge("boot_time_seconds", "When the node was booted, in seconds since the epoch."),
    "memory_total": gauge("memory_total_bytes", "Memory of the node."),
    "memory_available": gauge(
        "memory_available_bytes", "Memory that can be given out without swapping."
    ),
    "memory_free": gauge("memory_free_bytes", "Memory that is used for nothing at all."),
    "memory_cached": gauge("memory_cached_bytes", "Page cache, shared memory included."),
    "memory_buffers": gauge("memory_buffers_bytes", "Buffers of block devices."),
    "memory_shared": gauge("memory_shared_bytes", "Shared memory and files in memory."),
    "memory_dirty": gauge("memory_dirty_bytes", "Pages that wait to be written."),
    "memory_locked": gauge("memory_locked_bytes", "Pages that cannot be moved out of memory."),
    "swap_total": gauge("swap_total_bytes", "Room for swapped pages."),
    "swap_used": gauge("swap_used_bytes", "Swapped pages."),
    "swap_in": counter("swap_in_bytes_total", "Bytes read back from swap."),
    "swap_out": counter("swap_out_bytes_total", "Bytes written to swap."),
    "oom_kills": counter("oom_kills_total", "Processes that the kernel ended for want of memory."),
    "major_faults": counter("major_page_faults_total", "Page faults that had to read from a disk."),
}
_VMSTAT = {
    "oom_kill": ("oom_kills", 1),
    "pgmajfault": ("major_faults", 1),
    "pswpin": ("swap_in", os.sysconf("SC_PAGE_SIZE")),
    "pswpout": ("swap_out", os.sysconf("SC_PAGE_SIZE")),
}
_MEMINFO = {
    "MemTotal": "memory_total",
    "MemAvailable": "memory_available",
    "MemFree": "memory_free",
    "Cached": "memory_cached",
    "Buffers": "memory_buffers",
    "Shmem": "memory_shared",
    "Dirty": "memory_dirty",
    "Unevictable": "memory_locked",
    "SwapTotal": "swap_total",
}
FAMILIES: tuple[MetricFamily, ...] = (_CPU_SECONDS, _CORE_SECONDS, *_PLAIN.values())


class HostSource:
    """The node as a whole; ``is_per_core`` adds the seconds of each processor."""

    name = "host"
    families = FAMILIES

    def __init__(self, *, every_s: float = EVERY_S, is_per_core: bool = False) -> None:
        self.every_s = every_s
        self.problem = ""
        self._is_per_core = is_per_core
        self._before: tuple[float, float] | None = None

    def collect(self) -> Iterable[Sample]:
        """Read /proc."""
        now_ns = time.time_ns()
        self.problem = ""
        samples = self._read_cpus(now_ns)
        values: dict[str, float | None] = {"cpus": psutil.cpu_count()}
        for read in (self._read_load, self._read_memory, _read_vmstat):
            try:
                values |= read()
            except (OSError, ValueError) as error:
                self.problem = str(error)
        values["utilization"] = self._utilization
        return samples + fill(_PLAIN, values, (), now_ns)

    def _read_cpus(self, now_ns: int) -> list[Sample]:
        total = psutil.cpu_times()
        self._utilization = self._measure(total)
        samples = _mode_samples(_CPU_SECONDS, (), total, now_ns)
        if self._is_per_core:
            for number, times in enumerate(psutil.cpu_times(percpu=True)):
                samples += _mode_samples(_CORE_SECONDS, (str(number),), times, now_ns)
        return samples

    def _measure(self, times: Any) -> float | None:  # noqa: ANN401 - its fields vary by kernel
        whole_s = sum(getattr(times, mode, 0.0) for mode in _MODES)
        idle_s = sum(getattr(times, mode, 0.0) for mode in _IDLE_MODES)
        before, self._before = self._before, (whole_s, idle_s)
        if before is None or whole_s <= before[0]:
            return None
        return min(1.0, max(0.0, 1.0 - (idle_s - before[1]) / (whole_s - before[0])))

    @staticmethod
    def _read_load() -> dict[str, float | None]:
        load1, load5, load15 = os.getloadavg()
        boot_s = psutil.boot_time()
        told = _read_pairs(
            Path("/proc/stat"), {"ctxt", "processes", "procs_running", "procs_blocked"}
        )
        return {
            "load1": load1,
            "load5": load5,
            "load15": load15,
            "boot": boot_s,
            "uptime": time.clock_gettime(time.CLOCK_BOOTTIME),
            "switches": told.get("ctxt"),
            "forks": told.get("processes"),
            "running": told.get("procs_running"),
            "blocked": told.get("procs_blocked"),
        }

    @staticmethod
    def _read_memory() -> dict[str, float | None]:
        pairs = _read_pairs(Path("/proc/meminfo"), set(_MEMINFO) | {"SwapFree"})
        values: dict[str, float | None] = {
            key: pairs[name] * 1024 for name, key in _MEMINFO.items() if name in pairs
        }
        if "SwapTotal" in pairs and "SwapFree" in pairs:
            values["swap_used"] = (pairs["SwapTotal"] - pairs["SwapFree"]) * 1024
        return values


def _mode_samples(
    family: MetricFamily,
    labels: tuple[str, ...],
    times: Any,  # noqa: ANN401 - as above
    now_ns: int,
) -> list[Sample]:
    return [
        Sample(family=family, value=value, labels=(*labels, mode), time_ns=now_ns)
        for mode in _MODES
        if (value := getattr(times, mode, None)) is not None
    ]


def _read_vmstat() -> dict[str, float | None]:
    pairs = _read_pairs(Path("/proc/vmstat"), set(_VMSTAT))
    return {key: pairs[name] * size for name, (key, size) in _VMSTAT.items() if name in pairs}


def _read_pairs(path: Path, names: set[str]) -> dict[str, int]:
    """Read lines of a name and a number."""
    pairs = {}
    for line in path.read_bytes().splitlines():
        words = line.split(None, 2)
        if len(words) > 1 and (name := words[0].rstrip(b":").decode()) in names:
            pairs[name] = int(words[1])
    return pairs
