"""How much work was held up for want of processors, memory or disks, of the node and of cgroups."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

from whystuck.agent.metrics.bounds import MAX_LABEL_CHARS
from whystuck.agent.metrics.families import counter, fill, gauge
from whystuck.agent.metrics.rank.labels import RankProcess
from whystuck.collect.processes.proc_files import read_cgroups
from whystuck.evidence.nodes.metrics import MetricFamily, Sample

EVERY_S = 10.0
PRESSURE = Path("/proc/pressure")
CGROUPS = Path("/sys/fs/cgroup")
_RESOURCES = ("cpu", "io", "memory")
_MAX_GROUPS = 32
_MAX_READ_BYTES = 1 << 16
# Version 1 writes a number near 2^63 for "no limit".
_NO_LIMIT = float(1 << 60)


def _pressure_families(prefix: str, whose: str, *labels: str) -> dict[str, MetricFamily]:
    return {
        f"{resource} {kind}": counter(
            f"{prefix}pressure_{resource}_{name}_seconds_total",
            f"Seconds in which {what} {whose} waited for {resource}.",
            *labels,
        )
        for resource in _RESOURCES
        for kind, name, what in (
            ("some", "waiting", "some task of"),
            ("full", "stalled", "all tasks of"),
        )
    }


_NODE = _pressure_families("", "the node")
_GROUP = {
    **_pressure_families("cgroup_", "a cgroup", "cgroup"),
    "memory": gauge("cgroup_memory_bytes", "Memory of a cgroup, page cache included.", "cgroup"),
    "working": gauge(
        "cgroup_memory_working_set_bytes",
        "Memory of a cgroup, without what the kernel can drop at once.",
        "cgroup",
    ),
    "limit": gauge(
        "cgroup_memory_limit_bytes", "Most that a cgroup may have, where it is limited.", "cgroup"
    ),
    "oom_kills": counter(
        "cgroup_oom_kills_total", "Processes ended because their cgroup was full.", "cgroup"
    ),
    "throttled": counter(
        "cgroup_cpu_throttled_seconds_total",
        "Seconds for which a cgroup was kept from its processors by its quota.",
        "cgroup",
    ),
    "usage": counter("cgroup_cpu_seconds_total", "Processor time of a cgroup.", "cgroup"),
}
FAMILIES: tuple[MetricFamily, ...] = (*_NODE.values(), *_GROUP.values())

_REREAD_RUNS = 6


class PressureSource:
    """Pressure of the node, and memory, pressure and throttling of the cgroups of ranks.

    Args:
        list_ranks: The ranks of this node; the cgroup of this process is always read too.
        every_s: Seconds between two readings.
        pressure: Where the kernel tells the pressure of the node.
        cgroups: Where cgroups are mounted, of version 2, or of version 1 one folder for each part.
    """

    name = "pressure"
    families = FAMILIES

    def __init__(
        self,
        list_ranks: Callable[[], Sequence[RankProcess]] = tuple,
        *,
        every_s: float = EVERY_S,
        pressure: Path = PRESSURE,
        cgroups: Path = CGROUPS,
    ) -> None:
        self.every_s = every_s
        self.problem = ""
        self._list_ranks = list_ranks
        self._pressure = pressure
        self._cgroups = cgroups
        self._runs = 0
        self._paths: dict[tuple[int, int], dict[str, str]] = {}

    def collect(self) -> Iterable[Sample]:
        """Read /proc/pressure and the cgroups."""
        now_ns = time.time_ns()
        node = _read_pressures(self._pressure, "{}")
        is_missing = not any(value is not None for value in node.values())
        self.problem = "this kernel tells no pressure" if is_missing else ""
        samples = fill(_NODE, node, (), now_ns)
        for group in self._list_groups():
            # Its end tells more than its beginning.
            label = group["name"][-MAX_LABEL_CHARS:]
            samples += fill(_GROUP, self._read_group(group), (label,), now_ns)
        return samples

    def _list_groups(self) -> list[dict[str, str]]:
        """List the cgroups of the ranks and of this process: the path of each part, and a name."""
        # A process is hardly ever moved to another group.
        if self._runs % _REREAD_RUNS == 0:
            self._paths.clear()
        self._runs += 1
        found: dict[str, dict[str, str]] = {}
        ranks = [(one.pid, one.started_ticks) for one in self._list_ranks()]
        for pid, started in ((os.getpid(), 0), *ranks):
            paths = self._paths.get((pid, started)) or read_cgroups(pid)
            self._paths[pid, started] = paths
            name = paths.get("memory") or paths.get("", "")
            if name:
                found.setdefault(name, {**paths, "name": name})
            if len(found) == _MAX_GROUPS:
                break
        return list(found.values())

    def _read_group(self, paths: dict[str, str]) -> dict[str, float | None]:
        for root in (self._cgroups, self._cgroups / "unified"):
            group = _below(root, paths.get("", ""))
            if (group / "memory.current").is_file():
                return _read_new(group)
        return _read_old(self._cgroups, paths)


def _below(root: Path, path: str) -> Path:
    """Return a folder below ``root``; a path that would leave it is the root."""
    parts = PurePosixPath(path).parts[1:]
    return root if ".." in parts else root.joinpath(*parts)


def _read_new(group: Path) -> dict[str, float | None]:
    cpu, memory = _read_fields(group / "cpu.stat"), _read_fields(group / "memory.stat")
    used = _number(_read(group / "memory.current"))
    throttled_us, usage_us = cpu.get("throttled_usec"), cpu.get("usage_usec")
    return {
        **_read_pressures(group, "{}.pressure"),
        "memory": used,
        "working": _minus(used, memory.get("inactive_file")),
        "limit": _number(_read(group / "memory.max")),
        "oom_kills": _read_fields(group / "memory.events").get("oom_kill"),
        "throttled": None if throttled_us is None else throttled_us / 1e6,
        "usage": None if usage_us is None else usage_us / 1e6,
    }


def _read_old(root: Path, paths: dict[str, str]) -> dict[str, float | None]:
    """Read version 1, where the root of a part stands for the node and is no limit of a job."""
    values: dict[str, float | None] = {}
    if "memory" in paths:
        group = _below(root / "memory", paths["memory"])
        used = _number(_read(group / "memory.usage_in_bytes"))
        limit = _number(_read(group / "memory.limit_in_bytes"))
        values["memory"] = used
        values["working"] = _minus(
            used, _read_fields(group / "memory.stat").get("total_inactive_file")
        )
        values["limit"] = limit if limit is not None and limit < _NO_LIMIT else None
        values["oom_kills"] = _read_fields(group / "memory.oom_control").get("oom_kill")
    if paths.get("cpu", "/") != "/":
        throttled_ns = _read_fields(_below(root / "cpu", paths["cpu"]) / "cpu.stat").get(
            "throttled_time"
        )
        values["throttled"] = None if throttled_ns is None else throttled_ns / 1e9
    if paths.get("cpuacct", "/") != "/":
        usage_ns = _number(_read(_below(root / "cpuacct", paths["cpuacct"]) / "cpuacct.usage"))
        values["usage"] = None if usage_ns is None else usage_ns / 1e9
    return values


def _minus(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else max(0.0, whole - part)


def _read_pressures(folder: Path, pattern: str) -> dict[str, float | None]:
    """Read lines such as ``some avg10=0.00 avg60=0.00 avg300=0.00 total=1234``, in microseconds."""
    values: dict[str, float | None] = {}
    for resource in _RESOURCES:
        for line in _read(folder / pattern.format(resource)).splitlines()[:4]:
            kind, *fields = line.split()
            total = dict(one.partition("=")[::2] for one in fields).get("total", "")
            micros = _number(total)
            values[f"{resource} {kind}"] = None if micros is None else micros / 1e6
    return values


def _read_fields(path: Path) -> dict[str, float]:
    fields = {}
    for line in _read(path).splitlines():
        name, _, value = line.partition(" ")
        if (number := _number(value)) is not None:
            fields[name] = number
    return fields


def _number(text: str) -> float | None:
    text = text.strip()
    return float(int(text)) if text.isascii() and text.isdecimal() and len(text) < 24 else None  # noqa: PLR2004 - 2^64 has 20


def _read(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _MAX_READ_BYTES).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
