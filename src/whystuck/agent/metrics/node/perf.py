"""Instructions, cycles and misses of the node's processors, or of each rank."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from whystuck.agent.metrics.node import perf_events
from whystuck.agent.metrics.node.perf_events import Event, Scaled
from whystuck.agent.metrics.node.perf_families import (
    GROUPS,
    Scope,
    list_families,
    make_rate,
    make_total,
)
from whystuck.agent.metrics.rank.labels import RankProcess
from whystuck.evidence.nodes.metrics import MetricFamily, Sample

EVERY_S = 10.0
_ONLINE = Path("/sys/devices/system/cpu/online")
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_MAX_CPUS = 4096
# Counters are files; the agent has others to open.
_MAX_OPEN = 4096
_SPARE_FILES = 256
_MAX_OPEN_FOR_RANKS = 1024
_NO_COUNTERS = "this machine has no such counters, as is usual in virtual machines"


class _UnavailableError(Exception):
    """Nothing can be counted, for the reason given."""


class _Counted:
    """The counters of one processor or one rank."""

    def __init__(self) -> None:
        # One list of descriptors for each group; an inherited counter is a group of its own.
        self._groups: list[list[int]] = []
        self._scaled: dict[int, tuple[str, Scaled]] = {}
        self._is_inherited = False

    @property
    def open_files(self) -> int:
        return len(self._scaled)

    def open(self, events: Sequence[Event], *, pid: int, cpu: int, is_inherited: bool) -> None:
        """Open a group; what this machine does not have is left out. Raises OSError."""
        opened: list[int] = []
        for event in events:
            leader = opened[0] if opened and not is_inherited else -1
            try:
                descriptor = perf_events.open_event(
                    event, pid=pid, cpu=cpu, leader=leader, is_inherited=is_inherited
                )
            except OSError as error:
                if error.errno in perf_events.UNSUPPORTED:
                    continue
                perf_events.close_all(opened)
                for one in opened:
                    self._scaled.pop(one, None)
                raise
            opened.append(descriptor)
            self._scaled[descriptor] = (event.name, Scaled())
        if opened:
            self._groups.append(opened)
            if not is_inherited:
                perf_events.enable_group(opened[0])
        self._is_inherited = is_inherited

    def read(self) -> None:
        """Read all counters; what cannot be read stays as it was."""
        for descriptors in self._groups:
            try:
                if self._is_inherited:
                    counts = [perf_events.read_one(one) for one in descriptors]
                else:
                    counts = [*perf_events.read_group(descriptors[0])]
            except OSError:
                continue
            for descriptor, count in zip(descriptors, counts, strict=False):
                if count is not None:
                    self._scaled[descriptor][1].note(count)

    def totals(self) -> dict[str, float]:
        """Return the sum of each event so far."""
        sums: dict[str, float] = {}
        for name, scaled in self._scaled.values():
            sums[name] = sums.get(name, 0.0) + scaled.total
        return sums

    def close(self) -> None:
        perf_events.close_all(list(self._scaled))


class PerfSource:
    """Counts by perf_event_open: no sampling, so that what is counted does not notice.

    Args:
        list_ranks: The ranks of this node, for when the node as a whole may not be counted.
        every_s: Seconds between two readings.
        scope: Whom to count.
        groups: What to count.
    """

    name = "perf"

    def __init__(
        self,
        list_ranks: Callable[[], Sequence[RankProcess]] = tuple,
        *,
        every_s: float = EVERY_S,
        scope: Scope = Scope.AUTO,
        groups: Sequence[Sequence[Event]] = GROUPS,
    ) -> None:
        self.every_s = every_s
        self.problem = ""
        self.families: Sequence[MetricFamily] = list_families(groups)
        self._list_ranks = list_ranks
        self._scope = scope
        self._groups = groups
        self._is_off = False
        self._cpus: dict[int, _Counted] = {}
        self._ranks: dict[tuple[int, int], _Counted] = {}
        # What processors had counted that went offline.
        self._gone: dict[str, float] = {}
        self._before: dict[tuple[str, str], tuple[float, Mapping[str, float]]] = {}

    def collect(self) -> Iterable[Sample]:
        """Read the counters, opened at the first time."""
        if self._is_off:
            return []
        now_ns, now_s = time.time_ns(), time.monotonic()
        try:
            totals = self._count()
        except _UnavailableError as reason:
            self.problem = str(reason)
            self._is_off = True
            return []
        samples = [
            sample
            for labels, sums in totals.items()
            for sample in self._tell(labels, sums, now_s, now_ns)
        ]
        self._before = {labels: (now_s, sums) for labels, sums in totals.items()}
        return samples

    def close(self) -> None:
        """Close all counters."""
        for one in (*self._cpus.values(), *self._ranks.values()):
            one.close()
        self._cpus, self._ranks = {}, {}

    def _count(self) -> dict[tuple[str, str], Mapping[str, float]]:
        if self._scope is Scope.AUTO:
            self._choose_scope()
        return self._count_ranks() if self._scope is Scope.RANKS else {("", ""): self._count_node()}

    def _choose_scope(self) -> None:
        cpu = _list_cpus()[0]
        trial = _Counted()
        try:
            trial.open(self._groups[0], pid=-1, cpu=cpu, is_inherited=False)
        except PermissionError:
            self._scope = Scope.RANKS
        except OSError as error:
            raise _UnavailableError(f"perf_event_open failed: {error.strerror}") from None
        else:
            self._scope = Scope.NODE
        trial.close()

    def _count_node(self) -> Mapping[str, float]:
        online = _list_cpus()
        groups = self._groups_for(len(online))
        for cpu in self._cpus.keys() - set(online):
            ended = self._cpus.pop(cpu)
            _add(self._gone, ended.totals())
            ended.close()
        for cpu in online:
            if cpu not in self._cpus:
                self._cpus[cpu] = self._open_cpu(groups, cpu)
        sums = dict(self._gone)
        for one in self._cpus.values():
            one.read()
            _add(sums, one.totals())
        return sums

    def _open_cpu(self, groups: Sequence[Sequence[Event]], cpu: int) -> _Counted:
        counted = _Counted()
        try:
            for group in groups:
                counted.open(group, pid=-1, cpu=cpu, is_inherited=False)
        except OSError as error:
            counted.close()
            raise _UnavailableError(
                f"processor {cpu} cannot be counted: {error.strerror}"
            ) from None
        if not counted.open_files:
            raise _UnavailableError(
                "this machine has no such counters, as is usual in virtual machines"
            )
        return counted

    def _groups_for(self, cpus: int) -> Sequence[Sequence[Event]]:
        """Return as many groups as there is room for: each counter is an open file."""
        if self._cpus:
            return self._groups
        room = _make_room(cpus * sum(map(len, self._groups)))
        chosen = list(self._groups)
        while chosen and cpus * sum(map(len, chosen)) > room:
            chosen.pop()
        if not chosen:
            raise _UnavailableError(f"{cpus} processors need more open files than are allowed")
        if len(chosen) < len(self._groups):
            self.problem = "some events are left out: more open files are needed than are allowed"
        self._groups = chosen
        return chosen

    def _count_ranks(self) -> dict[tuple[str, str], Mapping[str, float]]:
        ranks = self._list_ranks()
        living = {(one.pid, one.started_ticks) for one in ranks}
        for key in self._ranks.keys() - living:
            self._ranks.pop(key).close()
        left = min(_MAX_OPEN_FOR_RANKS, _make_room(_MAX_OPEN_FOR_RANKS))
        left -= sum(one.open_files for one in self._ranks.values())
        totals: dict[tuple[str, str], Mapping[str, float]] = {}
        skipped = ""
        for rank in ranks:
            key = (rank.pid, rank.started_ticks)
            if key not in self._ranks:
                try:
                    self._ranks[key] = self._open_rank(rank, left)
                except OSError as error:
                    skipped = f"rank {rank.labels[1] or rank.pid} is not counted: {error.strerror}"
                    continue
                left -= self._ranks[key].open_files
            self._ranks[key].read()
            totals[rank.labels] = self._ranks[key].totals()
        self.problem = skipped
        return totals

    def _open_rank(self, rank: RankProcess, room: int) -> _Counted:
        """Open all threads of a rank; those it starts later are counted with them."""
        threads = sorted(int(name) for name in os.listdir(f"/proc/{rank.pid}/task"))  # noqa: PTH208
        needed = len(threads) * sum(map(len, self._groups))
        if needed > room:
            raise OSError(0, f"its {len(threads)} threads need {needed} counters")
        counted = _Counted()
        try:
            for thread in threads:
                for group in self._groups:
                    _open_thread(counted, group, thread)
        except PermissionError:
            counted.close()
            raise _UnavailableError(_say_paranoid()) from None
        except OSError:
            counted.close()
            raise
        if not counted.open_files:
            raise _UnavailableError(
                "this machine has no such counters, as is usual in virtual machines"
            )
        return counted

    def _tell(
        self, labels: tuple[str, str], sums: Mapping[str, float], now_s: float, now_ns: int
    ) -> Iterable[Sample]:
        before = self._before.get(labels)
        for event in (event for group in self._groups for event in group):
            if event.name not in sums:
                continue
            total = sums[event.name]
            yield Sample(family=make_total(event), value=total, labels=labels, time_ns=now_ns)
            if before is not None and now_s > before[0]:
                rate = max(0.0, total - before[1].get(event.name, total)) / (now_s - before[0])
                yield Sample(family=make_rate(event), value=rate, labels=labels, time_ns=now_ns)


def _open_thread(counted: _Counted, group: Sequence[Event], thread: int) -> None:
    try:
        counted.open(group, pid=thread, cpu=-1, is_inherited=True)
    except ProcessLookupError:
        return  # it has just ended


def _add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + value


def _list_cpus() -> list[int]:
    """Return the processors that are online; the kernel writes them as ``0-3,8``."""
    found: list[int] = []
    try:
        for part in _ONLINE.read_text().strip().split(","):
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    except (OSError, ValueError):
        return list(range(os.cpu_count() or 1))
    return found[:_MAX_CPUS] or [0]


def _make_room(wanted: int) -> int:
    """Return how many files may be opened for counters; raises our own soft limit if it can."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = min(wanted, _MAX_OPEN) + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = _MAX_OPEN if soft == resource.RLIM_INFINITY else soft - _SPARE_FILES
    return max(0, min(room, _MAX_OPEN))


def _say_paranoid() -> str:
    try:
        level = _PARANOID.read_text().strip()
    except OSError:
        return "perf_event_open is not allowed here"
    return (
        f"perf_event_open is not allowed: kernel.perf_event_paranoid is {level}, "
        "2 lets a user count own processes, 0 the whole node"
    )
