"""The processes of a node that ask the agent for work, as long as they live."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from whystuck.agent.interfaces import Asker, FabricPoll
from whystuck.agent.processes.identify import Identity, identify
from whystuck.agent.processes.kinds import Standing, tell_kinds
from whystuck.collect.beats import BeatSlot, read_beat
from whystuck.collect.disarmed import read_disarmed, refuses_traces
from whystuck.collect.processes.proc_files import read_name, read_start
from whystuck.collect.processes.target import owns_files
from whystuck.evidence.agent import ProcessEntry, ProcessKind, TraceRequest

_LOG = logging.getLogger(__name__)

SILENT_NS: Final = 60_000_000_000
"""Who has not asked for so long cannot be asked anything: it is stopped, or its thread is."""
_SWEEP_S: Final = 5.0
_MAX_PROCESSES: Final = 4096
_NAMED_BY_POLL: Final = 10  # torch names the workers of data loaders some time after its import
_ACTIVITIES: Final = 2
_ORDER: Final = {
    ProcessKind.RANK: 0,
    ProcessKind.PROCESS: 1,
    ProcessKind.LAUNCHER: 2,
    ProcessKind.HELPER: 3,
}

_Key = tuple[bytes | str, int]


class _Process:
    """One that has asked, and what is known of it."""

    def __init__(self, key: _Key, poll: FabricPoll, identity: Identity) -> None:
        self.key = key
        self.poll = poll
        self.first_ns = poll.time_ns
        self.standing = Standing(identity=identity)
        self.pid = identity.pid
        self.kind = ProcessKind.PROCESS
        self.beat: BeatSlot | None = None
        self.pidfd = -1
        self.num_polls = 0
        is_known = identity.job_dir != "" and identity.inner_pid > 0
        path = Path(identity.job_dir) / f"beat-{identity.inner_pid}"
        self._beat_path = path if is_known else None

    @property
    def steps(self) -> int:
        return self.beat.optimizer_steps if self.beat is not None else -1

    @property
    def steps_ns(self) -> int:
        return self.beat.wall_ns if self.beat is not None else 0

    def look(self) -> bool:
        """Read what changes in its life; tells whether its standing has changed."""
        if self.num_polls >= _NAMED_BY_POLL and self._beat_path is None:
            return False
        self.num_polls += 1
        standing = self.standing
        name, rank, world_size = standing.name, standing.told_rank, standing.told_world_size
        if self.num_polls <= _NAMED_BY_POLL:
            name = read_name(self.pid)
        if self._beat_path is not None and self._owns_files():
            self.beat = read_beat(self._beat_path) or self.beat
        if self.beat is not None and self.beat.rank >= 0 and self.beat.world_size > 0:
            rank, world_size = self.beat.rank, self.beat.world_size
        if (name, rank, world_size) == (
            standing.name,
            standing.told_rank,
            standing.told_world_size,
        ):
            return False
        self.standing = Standing(
            identity=standing.identity, name=name, told_rank=rank, told_world_size=world_size
        )
        return True

    def make_entry(self, node: str) -> ProcessEntry:
        """Return what others are told of it."""
        standing, poll = self.standing, self.poll
        is_of_rank = self.kind in {ProcessKind.RANK, ProcessKind.HELPER}
        return ProcessEntry(
            pid=self.pid,
            told_pids=poll.told_pids,
            job_number=poll.job_number,
            job=standing.identity.job or (str(poll.job_number) if poll.job_number else ""),
            node=node,
            kind=self.kind,
            rank=standing.rank if is_of_rank else -1,
            local_rank=standing.local_rank if is_of_rank else -1,
            world_size=standing.world_size if is_of_rank else -1,
            command=standing.identity.command,
            steps=self.steps,
            is_busy=not poll.wants & _ACTIVITIES,
            first_seen_ns=self.first_ns,
            seen_ns=poll.time_ns,
            can_answer=poll.can_answer,
            steps_ns=self.steps_ns,
            uid=poll.uid,
        )

    def is_named(self, job: str, *, begins: bool) -> bool:
        """Whether a name is that of its job, or the beginning of one."""
        names = self.standing.identity.job_names
        if self.poll.job_number:
            names = (*names, str(self.poll.job_number))
        return any(name.startswith(job) if begins else name == job for name in names)

    def is_disarmed(self) -> bool:
        """Whether its probe lets nobody ask it any more, which is told where it is named."""
        if self._beat_path is None or not self._owns_files():
            return False
        name = f"disarmed-{self.standing.identity.inner_pid}"
        return refuses_traces(read_disarmed(self._beat_path.with_name(name)))

    def _owns_files(self) -> bool:
        """Whether what lies in the folder of its job is of no other process that had its pid."""
        identity = self.standing.identity
        start_ticks = max(identity.start_ticks, 0)
        return owns_files(Path(identity.job_dir), identity.inner_pid, start_ticks)

    def is_alive(self) -> bool:
        """Whether the process that asked is still there, as far as /proc tells."""
        identity = self.standing.identity
        if identity.start_ticks >= 0:
            start = read_start(identity.pid)
            return start is not None and start[1] == identity.start_ticks
        if identity.pid > 0:  # one that we may not look into, or that went before we did
            with suppress(PermissionError):
                try:
                    os.kill(identity.pid, 0)
                except ProcessLookupError:
                    return False
        return True


class ProcessRegistry:
    """Keeps who asks, implements `Registry`, and tells who has ended.

    A process is its socket and its pid as the kernel tells it: in two containers both may say that
    they are 1. Its environment is read when it asks for the first time. Where the agent has an
    event loop, the end of a process is noticed at once; ``on_end`` is called with its last entry.
    ``before_read`` is called before anything is told: polls that have come may not be noted yet.
    """

    def __init__(
        self, *, node: str = "", on_end: Callable[[ProcessEntry], None] | None = None
    ) -> None:
        self.on_end = on_end
        self.before_read: Callable[[], None] = _note_nothing
        self._node = node or socket.gethostname()
        self._processes: dict[_Key, _Process] = {}
        self._by_pid: dict[int, _Process] = {}
        self._is_dirty = False
        self._last_unknown = -1
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Stop watching, and forget all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for process in list(self._processes.values()):
            self._unwatch(process)
        self._processes.clear()
        self._by_pid.clear()

    def note(self, poll: FabricPoll) -> Asker:
        """Take a poll, and return the process it came from."""
        key = (poll.address, poll.pid)
        process = self._processes.get(key)
        if process is None:
            process = self._add(key, poll)
        process.poll = poll
        if process.look():
            self._is_dirty = True
        return process

    def find(self, pid: int) -> ProcessEntry | None:
        """Return the process with this pid of the host."""
        self.before_read()
        process = self._by_pid.get(pid)
        if process is None:
            return None
        self._tell_kinds()
        return process.make_entry(self._node)

    def match(self, request: TraceRequest) -> list[ProcessEntry]:
        """Return the processes that a request chooses, ranks first, launchers and helpers last.

        Pids choose alone, whatever the job is: as the kernel numbers them, or else as the
        processes do themselves. Without pids, a job may be named by the beginning of its name.
        """
        chosen = self._list_live()
        pids = set(request.pids) - {0}
        if pids:
            chosen = _choose_by_pids(chosen, pids)
        elif request.job:
            exact = [one for one in chosen if one.is_named(request.job, begins=False)]
            chosen = exact or [one for one in chosen if one.is_named(request.job, begins=True)]
        entries = [one.make_entry(self._node) for one in chosen]
        if request.ranks:
            ranks = set(request.ranks)
            entries = [one for one in entries if one.rank in ranks]
        return sorted(entries, key=_order_of)

    def list_all(self) -> list[ProcessEntry]:
        """Return all that live and ask, ranks first."""
        return sorted((one.make_entry(self._node) for one in self._list_live()), key=_order_of)

    def _list_live(self) -> list[_Process]:
        self._sweep()
        self._tell_kinds()
        now_ns = time.time_ns()
        # A clock that was set back must not hide a process.
        return [
            one
            for one in self._processes.values()
            if now_ns - one.poll.time_ns < SILENT_NS or one.is_disarmed()
        ]

    def _tell_kinds(self) -> None:
        if self._is_dirty:
            self._is_dirty = False
            processes = list(self._processes.values())
            kinds = tell_kinds(one.standing for one in processes)
            for process in processes:
                process.kind = kinds[process.pid]

    # ------------------------------------------------------------------------ coming and going

    def _add(self, key: _Key, poll: FabricPoll) -> _Process:
        # Another socket of a process that asked before: it has started another program.
        before = self._by_pid.get(poll.pid) if poll.pid else None
        if before is not None:
            self._drop(before)
        if len(self._processes) >= _MAX_PROCESSES:
            self._drop(min(self._processes.values(), key=lambda one: one.poll.time_ns))
        process = _Process(key, poll, self._identify(poll))
        self._processes[key] = process
        self._by_pid[process.pid] = process
        self._is_dirty = True
        self._watch(process)
        return process

    def _identify(self, poll: FabricPoll) -> Identity:
        identity = identify(poll.pid) if poll.pid > 0 else None
        if identity is not None:
            return identity
        if poll.pid > 0:
            return Identity(pid=poll.pid)
        # Outside of our PID namespace: its own numbers mean other processes here.
        self._last_unknown -= 1
        return Identity(pid=self._last_unknown)

    def _watch(self, process: _Process) -> None:
        """Ask the kernel to tell when a process ends; without it, it is looked for."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if self._timer is None:
            self._timer = loop.call_later(_SWEEP_S, self._sweep_later)
        if process.pid > 0:
            with suppress(OSError):
                process.pidfd = os.pidfd_open(process.pid)
                loop.add_reader(process.pidfd, self._drop, process)

    def _unwatch(self, process: _Process) -> None:
        if process.pidfd >= 0:
            with suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(process.pidfd)
            os.close(process.pidfd)
            process.pidfd = -1

    def _sweep_later(self) -> None:
        self._timer = None
        self._sweep()
        if self._processes:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_SWEEP_S, self._sweep_later)

    def _sweep(self) -> None:
        """Drop those that ended unseen, and those of which nothing but silence is known."""
        self.before_read()
        now_ns = time.time_ns()
        for process in list(self._processes.values()):
            if process.pidfd >= 0:
                continue
            is_silent = now_ns - process.poll.time_ns >= SILENT_NS
            can_tell = process.pid > 0
            if not process.is_alive() or (is_silent and not can_tell):
                self._drop(process)

    def _drop(self, process: _Process) -> None:
        # A poll that is noted after the end would bring it back.
        self.before_read()
        self._tell_kinds()
        if self._processes.pop(process.key, None) is None:
            return
        if self._by_pid.get(process.pid) is process:
            del self._by_pid[process.pid]
        self._unwatch(process)
        self._is_dirty = True
        if self.on_end is not None:
            try:
                self.on_end(process.make_entry(self._node))
            except Exception:  # noqa: BLE001 - the ends to come must be told, too
                _LOG.exception("the end of pid %d could not be told", process.pid)


def _note_nothing() -> None:
    """All polls are noted as they come."""


def _choose_by_pids(processes: Iterable[_Process], pids: set[int]) -> list[_Process]:
    """Return those with one of these pids, or below one.

    A number of this host that is in use is meant as such: inside a container the same number may
    be another process.
    """
    all_of_them = list(processes)
    chosen: dict[_Key, _Process] = {}
    for pid in pids:
        by_host = [
            one for one in all_of_them if pid == one.pid or pid in one.standing.identity.parents
        ]
        by_word = [one for one in all_of_them if pid in one.poll.told_pids]
        for one in by_host or by_word:
            chosen[one.key] = one
    return list(chosen.values())


def _order_of(entry: ProcessEntry) -> tuple[int, str, int, int]:
    rank = entry.rank if entry.rank >= 0 else 1 << 30
    return _ORDER[entry.kind], entry.job, rank, entry.pid
