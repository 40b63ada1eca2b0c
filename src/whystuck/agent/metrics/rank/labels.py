"""Which processes of this node are ranks, and the labels of their figures."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from whystuck.agent.metrics.rank.beat_files import BeatFiles, RankBeat
from whystuck.collect.processes.proc_files import read_start
from whystuck.evidence.agent import ProcessEntry, ProcessKind

RANK_LABELS = ("job", "rank")
"""Of every figure of one rank; both empty for one of the whole node."""
Attribution = Callable[[int], Mapping[str, str]]
"""What a scheduler says of a pid: ``job`` and ``rank``, and names such as ``slurm_job_id``."""
_KEEP_S = 4.0
_FRESH_S = 0.5
_LIVELY_S = 3.0
_TOLD_S = 30.0
# A process has the environment of its parent until it calls exec.
_YOUNG_S = 60.0
_TICKS_PER_S = float(os.sysconf("SC_CLK_TCK"))
# A process writes its first beat after it has started; the two clocks may differ by this.
_CLOCK_SLACK_S = 2.0
_RANK_KINDS = frozenset({ProcessKind.RANK, ProcessKind.PROCESS})


class RankProcess(msgspec.Struct, kw_only=True, frozen=True):
    """A process of this node that trains; ``rank`` and its like are -1 when unknown.

    ``parent_pid`` and ``started_ticks`` are those of /proc/PID/stat; ``attributes`` is what a
    scheduler says. ``beat`` is the last one of the probe in it.
    """

    pid: int
    job: str
    rank: int = -1
    local_rank: int = -1
    world_size: int = -1
    parent_pid: int = 0
    started_ticks: int = 0
    attributes: Mapping[str, str] = msgspec.field(default_factory=dict)
    beat: RankBeat | None = None

    @property
    def labels(self) -> tuple[str, str]:
        """Its values for `RANK_LABELS`."""
        return (self.job, str(self.rank) if self.rank >= 0 else "")


@dataclass(frozen=True)
class _Seen:
    """What was found of a process the last time; ``start`` is its parent, and when in ticks."""

    start: tuple[int, int]
    entry: ProcessEntry | None
    beat: RankBeat | None


class RankBook:
    """All ranks of this node: from their polls and from their beats.

    Args:
        list_processes: Returns what the registry knows; called from several threads.
        beats: Where heartbeats are read.
        attribution: What a scheduler says of a pid; must not raise.

    Labels are of one process only: where two jobs have the same name and rank, the name of the one
    that came later gets the pid of its launcher.
    """

    def __init__(
        self,
        list_processes: Callable[[], Iterable[ProcessEntry]] = tuple,
        beats: BeatFiles | None = None,
        attribution: Attribution | None = None,
    ) -> None:
        self._list_processes = list_processes
        self._beats = beats or BeatFiles()
        self._attribution = attribution
        self._lock = threading.Lock()
        self._read_s = float("-inf")
        self._ranks: tuple[RankProcess, ...] = ()

        self._names: dict[tuple[str, int], str] = {}
        self._seen: dict[int, _Seen] = {}
        self._told: dict[tuple[int, int], tuple[float, Mapping[str, str]]] = {}

    def list_all(self, max_age_s: float = _KEEP_S) -> tuple[RankProcess, ...]:
        """Return the ranks that live, by job and rank, as they were read so long ago at most."""
        with self._lock:
            if time.monotonic() - self._read_s >= max_age_s:
                self._ranks = self._read()
                self._read_s = time.monotonic()
            return self._ranks

    def list_fresh(self) -> tuple[RankProcess, ...]:
        """Return the same, with beats that were read just now."""
        return self.list_all(_FRESH_S)

    def find(self, pid: int) -> RankProcess | None:
        """Return the rank with this pid of the host."""
        return next((one for one in self.list_all() if one.pid == pid), None)

    def _read(self) -> tuple[RankProcess, ...]:
        entries = {one.pid: one for one in self._list_processes() if one.kind in _RANK_KINDS}
        beats = {one.pid: one for one in self._beats.read_all()}
        seen = {
            pid: _Seen(start, entries.get(pid), beats.get(pid))
            for pid in entries.keys() | beats.keys()
            if (start := self._find_start(pid, entries.get(pid), beats.get(pid)))
        }
        starts = {pid: one.start for pid, one in seen.items()}
        self._seen = seen
        self._told = {key: told for key, told in self._told.items() if key[0] in starts}
        found = []
        for pid, start in starts.items():
            beat = beats.get(pid)
            if beat is not None and not _is_beat_of(beat, start[1]):
                beat = None
            if beat is not None or pid in entries:
                found.append(self._make(entries.get(pid), beat, pid, start))
        return self._tell_apart(found)

    def _find_start(
        self, pid: int, entry: ProcessEntry | None, beat: RankBeat | None
    ) -> tuple[int, int] | None:
        """Return parent and start; of one that has shown itself since the last time, as before."""
        before = self._seen.get(pid)
        if before and (_polled_since(before.entry, entry) or _beat_since(before.beat, beat)):
            return before.start
        return read_start(pid)

    def _ask(self, pid: int, started_ticks: int) -> Mapping[str, str]:
        """Return what a scheduler says; of a process that is no longer young, twice a minute."""
        if self._attribution is None:
            return {}
        now_s = time.monotonic()
        told_s, told = self._told.get((pid, started_ticks), (float("-inf"), {}))
        if now_s - told_s >= _TOLD_S:
            told = self._attribution(pid)
            age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / _TICKS_PER_S
            if age_s > _YOUNG_S:
                self._told[pid, started_ticks] = (now_s, told)
        return told

    def _make(
        self,
        entry: ProcessEntry | None,
        beat: RankBeat | None,
        pid: int,
        start: tuple[int, int],
    ) -> RankProcess:
        told = self._ask(pid, start[1])
        entry = entry or ProcessEntry(pid=pid)
        slot = beat.slot if beat else None
        return RankProcess(
            pid=pid,
            job=entry.job or told.get("job", "") or (beat.folder.name if beat else f"pid-{pid}"),
            rank=_first_known(entry.rank, slot.rank if slot else -1, _number(told.get("rank"))),
            local_rank=entry.local_rank,
            world_size=_first_known(entry.world_size, slot.world_size if slot else -1),
            parent_pid=start[0],
            started_ticks=start[1],
            attributes=told,
            beat=beat,
        )

    def _tell_apart(self, ranks: Sequence[RankProcess]) -> tuple[RankProcess, ...]:
        """Give each job a name of its own, and keep one process of each label: the newest."""
        groups: dict[tuple[str, int], list[RankProcess]] = {}
        for one in sorted(ranks, key=lambda one: (one.started_ticks, one.pid)):
            # Those of no rank have nothing in common but their name.
            home = one.parent_pid if one.rank >= 0 else one.pid
            groups.setdefault((one.job, home), []).append(one)
        by_labels: dict[tuple[str, str], RankProcess] = {}
        names: dict[tuple[str, int], str] = {}
        for (job, home), members in groups.items():
            is_taken = any(one.labels in by_labels for one in members)
            name = self._names.get((job, home)) or (f"{job}-{home}" if is_taken else job)
            names[job, home] = name
            for one in members:
                named = msgspec.structs.replace(one, job=name)
                by_labels[named.labels] = named
        self._names = names
        return tuple(sorted(by_labels.values(), key=lambda one: (one.job, one.rank, one.pid)))


def _polled_since(before: ProcessEntry | None, now: ProcessEntry | None) -> bool:
    """Tell whether a process has asked for work since; another one of its pid is seen anew."""
    if before is None or now is None:
        return False
    return before.first_seen_ns == now.first_seen_ns and before.seen_ns < now.seen_ns


def _beat_since(before: RankBeat | None, now: RankBeat | None) -> bool:
    if before is None or now is None or before.folder != now.folder:
        return False
    return before.slot.monotonic_ns < now.slot.monotonic_ns and now.slot.age_s < _LIVELY_S


def _first_known(*numbers: int) -> int:
    return next((one for one in numbers if one >= 0), -1)


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 10 else -1  # noqa: PLR2004


def _is_beat_of(beat: RankBeat, started_ticks: int) -> bool:
    """Tell whether a beat is of the process that has its pid now: a pid may be used again."""
    started_s = started_ticks / _TICKS_PER_S
    offset_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return beat.slot.monotonic_ns / 1e9 + offset_s >= started_s - _CLOCK_SLACK_S
