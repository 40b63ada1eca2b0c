"""What is watched of this node beside its ranks: memory, limits, room, the kernel's log."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from whystuck.collect.beats import read_beat
from whystuck.collect.node.host import SHARED_MEMORY, collect_host, read_free
from whystuck.collect.node.kernel_log import KernelLog, counts_as_kernel, drop_foreign
from whystuck.collect.processes.cpu import CpuTracker
from whystuck.collect.processes.garbage import GarbageTracker
from whystuck.collect.processes.memory import MemoryTracker, read_memory_group
from whystuck.collect.processes.proc_files import list_descendants
from whystuck.evidence.finding import Gap
from whystuck.evidence.nodes import records
from whystuck.evidence.nodes.records import ClaimsRecord, HostRecord
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.incidents.mark_history import MarkHistory
from whystuck.launch.processes.rank_table import RankProcess, RankTable

_MAX_CLAIMS = 4096
# Ranks that fail at once are started anew faster than their ends are reported.
_KEPT_ATTEMPTS = 4
_KIN_EVERY_S = 1.0
_COST_SHARE = 0.002
_MAX_KIN = 1 << 16


@dataclass
class NodeWatch:
    """Cheap looks while the job runs, and files when something has happened.

    Nothing here may fail the job: what cannot be read is left out, and told as a gap.
    """

    evidence: EvidenceFolder
    table: RankTable
    memory: MemoryTracker = field(init=False)
    cpu: CpuTracker = field(init=False)
    garbage: GarbageTracker = field(init=False)
    marks: MarkHistory = field(init=False)
    _host: HostRecord = field(init=False)
    _kernel: KernelLog | None = None
    _groups: dict[str, None] = field(default_factory=dict)
    _grouped: set[int] = field(default_factory=set)
    _lowest: int = 1 << 62
    _attempt: int = 0
    _kin: set[int] = field(default_factory=set)
    _next_kin_s: float = 0.0

    def __post_init__(self) -> None:
        """Nothing is looked at before `start`."""
        self.memory = MemoryTracker(self.evidence.node)
        self.cpu = CpuTracker(self.evidence.node)
        self.garbage = GarbageTracker(self.evidence.node, self._find_collector)
        self.marks = MarkHistory(self.evidence, self.table)
        self._host = HostRecord(node=self.evidence.node)

    def start(self) -> None:
        """Look at the node before the job begins."""
        self._kernel = KernelLog(self.evidence.node)
        self._groups[read_memory_group(os.getpid())] = None
        self._host.start = self._look_at_host()

    def look(self, now_s: float) -> None:
        """Look at the memory of all ranks, unless the last look was a moment ago."""
        pids = self.table.all_pids()
        for pid in set(pids) - self._grouped:
            self._grouped.add(pid)
            self._groups[read_memory_group(pid)] = None
        if self._attempt != self.table.attempt:
            self._attempt = self.table.attempt
            oldest = self._attempt - _KEPT_ATTEMPTS
            kept = {one.pid for one in self.table.all_processes() if one.attempt > oldest}
            self.memory.keep(kept)
            self.cpu.keep(kept)
            self.garbage.keep(kept)
        self.memory.look(pids, now_s)
        self.cpu.look(pids, now_s)
        self.garbage.look(pids, now_s)
        self._note_kin(now_s)
        self.marks.look(now_s)
        self._lowest = min(self._lowest, read_free(SHARED_MEMORY))

    def _find_collector(self, pid: int) -> int:
        """Return where a rank says that the counts of its garbage collector are, 0 if nowhere."""
        for process in self.table.all_processes():
            if process.pid == pid and (beat := read_beat(self.table.file_of(process, "beat"))):
                return beat.collector
        return 0

    def _note_kin(self, now_s: float) -> None:
        """Note which processes are of this job, as often as is cheap."""
        if now_s < self._next_kin_s:
            return
        begin_s = time.thread_time()
        # Orphans have become ours.
        self._kin |= list_descendants(os.getpid())
        cost_s = time.thread_time() - begin_s
        self._next_kin_s = now_s + max(_KIN_EVERY_S, cost_s / _COST_SHARE)
        if len(self._kin) > _MAX_KIN:
            self._kin = set(sorted(self._kin)[-_MAX_KIN // 2 :])

    def write_looks(self, folder: Path, process: RankProcess) -> None:
        """Write ``memory.json``, ``cpu.json`` and ``garbage.json`` of a rank, as far as known."""
        for name, record in (
            (records.MEMORY_FILE, self.memory.find(process.pid)),
            (records.CPU_FILE, self.cpu.find(process.pid)),
            (records.GARBAGE_FILE, self.garbage.find(process.pid)),
        ):
            if record is not None and record.points:
                self.evidence.write(folder / name, msgspec.json.encode(record))

    def write_incident(self, folder: Path, processes: Iterable[RankProcess]) -> list[Gap]:
        """Write all that is known of the node and of some ranks; return what could not be had.

        The kernel's log is missed only where a signal ended somebody.
        """
        processes = list(processes)
        node = folder / self.evidence.node
        for process in processes:
            self.write_looks(node / f"rank-{process.rank}", process)
        self._host.end = self._look_at_host()
        self.evidence.write(node / records.HOST_FILE, msgspec.json.encode(self._host))
        claims = [one.describe() for one in self.table.all_processes()]
        if claims:
            record = ClaimsRecord(node=self.evidence.node, claims=claims[-_MAX_CLAIMS:])
            self.evidence.write(node / records.CLAIMS_FILE, msgspec.json.encode(record))
        gaps = self._write_kernel_log(node)
        is_signalled = any(one.exit is not None and one.exit.signal for one in processes)
        return gaps if is_signalled else []

    def close(self) -> None:
        """Let go of what is open."""
        if self._kernel is not None:
            self._kernel.close()

    def _look_at_host(self) -> records.HostEntry:
        folders = [Path.cwd(), *([] if self.evidence.hangs else [self.evidence.root])]
        state = collect_host(list(self._groups), folders)
        shared = str(SHARED_MEMORY)
        volumes = (
            replace(one, lowest=min(self._lowest, one.free)) if one.path == shared else one
            for one in state.volumes
        )
        return replace(state, volumes=tuple(volumes))

    def _write_kernel_log(self, node: Path) -> list[Gap]:
        if self._kernel is None:
            return []
        text = self._kernel.read()
        if counts_as_kernel():
            workers = {pid for known in self.memory.list_records() for pid in known.worker_pids}
            ranks = {one.pid for one in self.table.all_processes()}
            text, _ = drop_foreign(text, self._kin | ranks | workers)
        if text:
            self.evidence.write(node / records.KERNEL_LOG_FILE, text)
        if text or not self._kernel.problem:
            return []
        return [Gap(None, "kernel log", self._kernel.problem)]
