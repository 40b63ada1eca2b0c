"""The memory of processes: cheap looks at /proc, and a series of bounded size for each rank."""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass, field

from whystuck.collect.processes.proc_files import (
    list_children_of_thread,
    read_cgroups,
    read_small,
    read_status,
)
from whystuck.collect.processes.tracker import Tracker
from whystuck.evidence.nodes.records import MemoryRecord

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Memory that grows fast is told by the last looks, memory that leaks by those of hours.
_MAX_RECENT = 100
_MAX_OLD = 256
_LONG_EVERY_S = 1.0
_CHILDREN_EVERY_S = 1.0
_MAX_WORKERS = 64
# A look takes about 20 microseconds a process; all looks together get this share of a core.
_EVERY_S = 0.2
_COST_SHARE = 0.01
_UNLIMITED = "unlimited"
_LIMITS = {
    "Max address space": "address_limit",
    "Max data size": "data_limit",
    "Max resident set": "rss_limit",
}

_Point = tuple[int, int, int, int]


@dataclass
class RankMemory:
    """What was seen of one rank; the record has few old points and many of the last seconds."""

    pid: int
    node: str
    record: MemoryRecord = field(init=False)
    _old: list[_Point] = field(default_factory=list)
    _recent: deque[_Point] = field(default_factory=lambda: deque(maxlen=_MAX_RECENT))
    _children: list[int] = field(default_factory=list)
    _next_old_ns: int = 0
    _old_every_ns: int = int(_LONG_EVERY_S * 1e9)
    _next_children_s: float = 0.0

    def __post_init__(self) -> None:
        """Begin with an empty record."""
        self.record = MemoryRecord(pid=self.pid, node=self.node, cgroup=read_memory_group(self.pid))

    def look(self, now_s: float) -> None:
        """Take one point; nothing when the process is gone, or goes: it holds no memory then."""
        own = _read_statm(self.pid)
        if own is None or not own[1]:
            return
        if now_s >= self._next_children_s:
            self._next_children_s = now_s + _CHILDREN_EVERY_S
            self._find_children()
            self._read_limits()
        below = sum(found[1] for pid in self._children if (found := _read_statm(pid)))
        self.add((time.time_ns(), own[1], own[0], below))

    def add(self, point: _Point) -> None:
        """Add a point, and thin out the old ones when they are too many."""
        self._recent.append(point)
        self.record.peak = max(self.record.peak, point[1])
        if point[0] < self._next_old_ns:
            return
        self._old.append(point)
        if len(self._old) > _MAX_OLD:
            del self._old[1::2]
            self._old_every_ns *= 2
        self._next_old_ns = point[0] + self._old_every_ns

    def make_record(self) -> MemoryRecord:
        """Return all that is known now."""
        first_ns = self._recent[0][0] if self._recent else 0
        points = [point for point in self._old if point[0] < first_ns]
        self.record.points = [*points, *self._recent]
        return self.record

    def _find_children(self) -> None:
        self._children = list_children_of_thread(self.pid, self.pid)[:_MAX_WORKERS]
        known = set(self.record.worker_pids)
        room = max(0, _MAX_WORKERS - len(known))
        self.record.worker_pids += [pid for pid in self._children if pid not in known][:room]

    def _read_limits(self) -> None:
        """Take the limits and the peak; a job may set limits for itself at any time."""
        try:
            limits = read_small(self.pid, "limits").decode()
        except OSError:
            return
        for line in limits.splitlines():
            if (name := _LIMITS.get(line[:26].strip())) is not None:
                value = line[26:].split()[0]
                setattr(self.record, name, 0 if value == _UNLIMITED else int(value))
        if peak := read_status(self.pid).get("VmHWM"):
            self.record.peak = max(self.record.peak, int(peak.split()[0]) << 10)


class MemoryTracker(Tracker[RankMemory]):
    """Looks at the memory of all ranks of a node."""

    def __init__(self, node: str) -> None:
        super().__init__(lambda pid: RankMemory(pid, node), _EVERY_S, _COST_SHARE)

    def list_records(self) -> list[MemoryRecord]:
        """Return what is known of all processes, without their points."""
        return [known.record for known in list(self._by_pid.values())]

    def find(self, pid: int) -> MemoryRecord | None:
        """Return what is known of a process, or None."""
        known = self._by_pid.get(pid)
        return None if known is None else known.make_record()


def read_memory_group(pid: int) -> str:
    """Return the path of the memory cgroup of a process, version 1 before 2; empty if unknown."""
    paths = read_cgroups(pid)
    return paths.get("memory", paths.get("", ""))


def _read_statm(pid: int) -> tuple[int, int] | None:
    """Return virtual and resident bytes of a process, or None when it is gone."""
    try:
        fields = read_small(pid, "statm").split()
    except OSError:
        return None
    if len(fields) < 2:  # noqa: PLR2004 - size and resident
        return None
    return int(fields[0]) * _PAGE_BYTES, int(fields[1]) * _PAGE_BYTES
