"""The rank processes of this node, from their first word to their end."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from whystuck.collect.beats import BeatSlot, read_beat_in
from whystuck.collect.processes.claims import collect_claim
from whystuck.collect.processes.proc import catches_signal
from whystuck.collect.processes.proc_files import is_alive, read_start
from whystuck.collect.processes.target import Target, name_artifact, owns_files
from whystuck.collect.scene import stacks_signal
from whystuck.evidence.nodes.records import ClaimEntry
from whystuck.evidence.records import ExitEntry
from whystuck.guarded.folders import folder_at
from whystuck.launch.processes.exits import open_pidfd, read_wait_status, split_wait_status

KEPT_ATTEMPTS = 256
"""Of which the ranks are known: as many as may wait for their reports, when each ends at once."""
_SETTLE_S = 1.0
# Launchers give ranks half a minute after SIGTERM before they end them by SIGKILL.
_ENDING_S = 60.0


@dataclass
class RankProcess:
    """One process that said it is a rank; ``attempt`` counts the launcher's own restarts.

    ``file_pid`` and ``start_ticks`` are as in `whystuck.collect.processes.target.Target`.
    ``is_twin`` says that another process with the same rank lived when it came, ``failed_ns`` when
    it said that it is about to fail, before anybody had ended; 0 when it did not.
    """

    rank: int
    pid: int
    is_member: bool
    attempt: int
    pidfd: int | None
    exit: ExitEntry | None = None
    claim: ClaimEntry = field(default_factory=ClaimEntry)
    is_twin: bool = False
    failed_ns: int = 0
    file_pid: int = 0
    start_ticks: int = 0

    def describe(self) -> ClaimEntry:
        """Return what it claimed, and how it ended."""
        end = self.exit or ExitEntry()
        return replace(
            self.claim,
            rank=self.rank,
            pid=self.pid,
            is_member=self.is_member,
            attempt=self.attempt,
            ended_ns=end.ended_ns,
            code=end.code,
            signal=end.signal,
        )

    @property
    def is_alive(self) -> bool:
        """Whether its end was not seen yet."""
        return self.exit is None


def _ignore(_alive: list[int]) -> None:
    """Nobody asked to know."""


@dataclass
class RankTable:
    """All of them; the listener's thread adds, the supervisor's thread looks.

    ``on_failure`` is called with the ranks that live when the first of an attempt has failed, by
    the thread that sees it.
    """

    job_dir: Path
    node: str
    world_size: int = 0
    torch_version: str = ""
    python_version: str = ""
    taking_down: bool = False
    attempt: int = 0
    first_failure_ns: int = 0
    _failed_s: float = 0.0
    began_ns: dict[int, int] = field(default_factory=dict)
    on_failure: Callable[[list[int]], None] = _ignore
    _by_pid: dict[int, RankProcess] = field(default_factory=dict)
    _ended: list[RankProcess] = field(default_factory=list)
    _wake: tuple[int, int] = field(default_factory=os.pipe)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(
        self, *, rank: int, pid: int, world_size: int, is_member: bool, file_pid: int = 0
    ) -> None:
        """Take the word of a process that it is this rank."""
        known = self.find(pid)
        is_new = known is None or (not known.is_alive and is_alive(pid))
        claim = collect_claim(rank, pid) if is_new else None
        with self._lock:
            if known is not None and is_new:
                self._by_pid = _without_number(self._by_pid, known)
            known = self._by_pid.get(pid)
            if known is None:
                known = self._make(rank, pid)
                self._name_files(known, file_pid or pid)
                self._by_pid[pid] = known
                known.claim = claim or known.claim
            known.rank, known.is_member = rank, known.is_member or is_member
            if world_size:
                known.claim = replace(known.claim, world_size=world_size)
            self.world_size = max(self.world_size, world_size)
        os.write(self._wake[1], b"+")

    def _make(self, rank: int, pid: int) -> RankProcess:
        peers = [old for old in self._current() if old.rank == rank]
        if any(_has_ended(old) for old in peers):
            # The launcher starts the ranks anew; those before are another attempt.
            self.attempt += 1
            self.began_ns[self.attempt] = time.time_ns()
            self.taking_down, self.first_failure_ns = False, 0
            self._forget_old()
            peers = []
        process = RankProcess(rank, pid, is_member=False, attempt=self.attempt, pidfd=None)
        process.pidfd, process.is_twin = open_pidfd(pid), bool(peers)
        process.start_ticks = (read_start(pid) or (0, 0))[1]
        return process

    def _forget_old(self) -> None:
        """Forget ranks of attempts that nobody asks for any more; a script may start very many."""
        oldest = self.attempt - KEPT_ATTEMPTS
        self._by_pid = {
            pid: one for pid, one in self._by_pid.items() if one.is_alive or one.attempt > oldest
        }
        self.began_ns.pop(oldest, None)

    def _name_files(self, process: RankProcess, file_pid: int) -> None:
        """Learn by which pid the files of a process are named, and who else has the same one."""
        process.file_pid = file_pid
        others = [one for one in self._by_pid.values() if one.file_pid == file_pid]
        if any(one.is_alive and one.pid != process.pid for one in others):
            for one in (process, *others):
                one.file_pid = -1

    def note_failing(self, pid: int) -> None:
        """Take the word of a rank that it fails by itself; later it may look like an echo."""
        with self._lock:
            process = self._by_pid.get(pid)
            if process is not None and not self.taking_down:
                process.failed_ns = process.failed_ns or time.time_ns()

    def find(self, pid: int) -> RankProcess | None:
        """Return the process that said it is a rank, or None."""
        with self._lock:
            return self._by_pid.get(pid)

    def all_processes(self) -> list[RankProcess]:
        """Return all processes of all attempts, in the order in which they came."""
        with self._lock:
            return list(self._by_pid.values())

    def _current(self) -> list[RankProcess]:
        return [one for one in self._by_pid.values() if one.attempt == self.attempt]

    def processes(self, attempt: int | None = None) -> list[RankProcess]:
        """Return one process a rank, members before candidates, of the last attempt or another."""
        with self._lock:
            best: dict[int, RankProcess] = {}
            wanted = self.attempt if attempt is None else attempt
            for process in (one for one in self._by_pid.values() if one.attempt == wanted):
                known = best.get(process.rank)
                if known is None or process.is_member >= known.is_member:
                    best[process.rank] = process
            return [best[rank] for rank in sorted(best)]

    def exits(self, attempt: int | None = None) -> dict[int, ExitEntry]:
        """Return how those processes ended that have, by rank."""
        return {one.rank: one.exit for one in self.processes(attempt) if one.exit is not None}

    def all_pids(self) -> list[int]:
        """Return the pids of all processes that ever said they are a rank and still live."""
        with self._lock:
            return [process.pid for process in self._by_pid.values() if process.is_alive]

    @property
    def has_peers(self) -> bool:
        """Whether ranks of the job run on other nodes."""
        return self.world_size > len({one.rank for one in self.processes()})

    def crashing_pids(self) -> list[int]:
        """Return the live ranks in which faulthandler has written and that are held since."""
        found = [one for one in self.all_processes() if one.is_alive]
        return [one.pid for one in found if self._is_written(self._name_of(one, "fatal"))]

    def wake_crashing(self) -> None:
        """Let the ranks go on that are held while they crash; a handled signal ends their sleep."""
        for pid in self.crashing_pids():
            with suppress(OSError):
                if catches_signal(pid, stacks_signal()):
                    os.kill(pid, stacks_signal())

    def targets(self, *, alive_only: bool, attempt: int | None = None) -> list[Target]:
        """Return the processes as targets of collection."""
        return [
            self.target_of(process)
            for process in self.processes(attempt)
            if process.is_alive or not alive_only
        ]

    def file_of(self, process: RankProcess, kind: str) -> Path:
        """Return the path of one of the probe's files of a process."""
        return self.job_dir / self._name_of(process, kind)

    def _name_of(self, process: RankProcess, kind: str) -> str:
        number = process.file_pid or process.pid
        # One that lives has its pid to itself, and is asked for five times a second.
        is_own = process.is_alive or owns_files(self.job_dir, number, process.start_ticks)
        return name_artifact(kind, number if is_own else -1)

    def _is_written(self, name: str) -> bool:
        try:
            return os.stat(f"{self.job_dir}/{name}").st_size > 0  # noqa: PTH116 - five times a second
        except OSError:
            return False

    def target_of(self, process: RankProcess) -> Target:
        """Return a process as a target of collection."""
        numbers = process.file_pid, process.start_ticks
        return Target(process.rank, process.pid, self.node, self.job_dir, *numbers)

    def is_ending(self) -> bool:
        """Tell whether a rank has failed and the launcher has time left to end the others."""
        return bool(self.first_failure_ns) and time.monotonic() - self._failed_s < _ENDING_S

    def delay_ending(self, now_ns: int) -> None:
        """Take it that the launcher learns of the first failure only now."""
        if self.first_failure_ns:
            self.first_failure_ns, self._failed_s = now_ns, time.monotonic()

    def has_failed_before(self, time_ns: int) -> bool:
        """Tell whether a rank of the last attempt had failed by then."""
        return 0 < self.first_failure_ns < time_ns

    def start(self) -> None:
        """Watch for ends in a thread: who fails first is told by milliseconds."""
        threading.Thread(target=self._watch, name="exits", daemon=True).start()

    def take_ended(self) -> list[RankProcess]:
        """Return the processes that ended since the last call."""
        with self._lock:
            ended, self._ended = self._ended, []
            return ended

    def wait_for_exits(self, timeout_s: float) -> None:
        """Wait until the ends of all ranks were seen, or for ``timeout_s``."""
        deadline_s = time.monotonic() + timeout_s
        while self.all_pids() and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def settle(self) -> None:
        """Wait a moment until the ends of ranks that are gone already are noted."""
        deadline_s = time.monotonic() + _SETTLE_S
        while not all(map(is_alive, self.all_pids())) and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._wake[0], select.POLLIN)
        watched: dict[int, RankProcess] = {}
        while True:
            for fd, _ in poller.poll():
                if fd == self._wake[0]:
                    os.read(fd, 64)
                    continue
                poller.unregister(fd)
                with self._lock:
                    self._note_exit(watched.pop(fd))
            with self._lock:
                for process in self._by_pid.values():
                    if process.is_alive and process.pidfd is None:
                        self._note_exit(process)
                    elif process.pidfd is not None and process.pidfd not in watched:
                        watched[process.pidfd] = process
                        poller.register(process.pidfd, select.POLLIN)

    def _note_exit(self, process: RankProcess) -> None:
        code = signal = None
        ended_ns = time.time_ns()
        if process.pidfd is not None:
            status = read_wait_status(process.pid, process.pidfd)
            os.close(process.pidfd)
            process.pidfd = None
            if status is not None:
                code, signal = split_wait_status(status)
        process.exit = ExitEntry(
            pid=process.pid,
            code=code,
            signal=signal,
            ended_ns=ended_ns,
            # It was held with others that fail; the first to be let go is no cause of the rest.
            after_launcher_kill=self.taking_down and not (code and process.failed_ns),
            source="not seen" if code is None and signal is None else "pidfd",
            failed_ns=process.failed_ns,
        )
        self._ended.append(process)
        if code or signal:
            if not self.first_failure_ns:
                # At once: launchers look ten times a second.
                self.on_failure([one.pid for one in self._current() if one.is_alive])
                self.first_failure_ns, self._failed_s = ended_ns, time.monotonic()
            # From the first failure on, the launcher ends the others.
            self.taking_down = True

    def find_most_steps(self) -> int:
        """Return the most optimizer steps that a rank of the last attempt has told."""
        beats = self._read_beats(self.processes()).values()
        return max((beat.optimizer_steps for beat in beats), default=0)

    def counters(self) -> tuple[dict[int, tuple[int, ...]], bool]:
        """Return the progress counters of each live rank, and whether any has communicated."""
        processes = self.processes()
        beats = self._read_beats([one for one in processes if one.exit is None])
        counters = {rank: beat.progress for rank, beat in beats.items()}
        counters |= {one.rank: (-1,) for one in processes if one.exit is not None}
        return counters, any(beat.has_communicated for beat in beats.values())

    def _read_beats(self, processes: Iterable[RankProcess]) -> dict[int, BeatSlot]:
        """Return the heartbeats by rank; the folder is opened once for all of them."""
        found: dict[int, BeatSlot] = {}
        with suppress(OSError), folder_at(self.job_dir) as folder:
            for process in processes:
                beat = read_beat_in(folder, self._name_of(process, "beat"))
                if beat is not None:
                    found[process.rank] = beat
        return found


def _without_number(table: dict[int, RankProcess], ended: RankProcess) -> dict[int, RankProcess]:
    """Keep a process that has ended under no pid: the system has given it to another one."""
    free = min(table) - 1 if min(table) < 0 else -1
    return {free if one is ended else pid: one for pid, one in table.items()}


def _has_ended(process: RankProcess) -> bool:
    # Its successor may speak before our thread has seen the end.
    return not (process.is_alive and is_alive(process.pid))
