"""Keeping the processes of a job that has failed, or is stuck, for a look around.

A rank that raises, or ends itself with a code, is held by its probe until we answer, and one that
crashes is stopped while it sleeps in its handler. Of one that is gone at once, the processes
between the command and its ranks are stopped before they see it: they would end the others. All go
on when the scene is released, and the job ends as it would have.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from whystuck.collect.processes.proc_files import read_start
from whystuck.launch.hold_files import HOLD_FILE, RELEASE_FILE, HoldRecord

_LOOK_S = 0.5
_MAX_DEPTH = 64


@dataclass
class SceneHold:
    """The scene of one round, kept for ``hold_s`` after a crash; not where that is None.

    Attributes:
        hold_s: What was asked for crashes.
        job_dir: The folder of the job; ``whystuck release`` leaves a file in it.
        root: The evidence folder; so may anybody who can write there.
        tell_front: Gets the processes that we have stopped, each time they change.
    """

    hold_s: float | None
    job_dir: Path
    root: Path
    tell_front: Callable[[list[int]], object]
    is_frozen: bool = False
    is_active: bool = False
    command_pid: int = 0
    _is_over: bool = False
    _stopped: dict[int, None] = field(default_factory=dict)
    _until_s: float = 0.0
    _since_ns: int = 0
    _seen: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def wants_crash(self) -> bool:
        """Whether the scene of a crash is to be kept, which has not happened in this attempt."""
        return self.hold_s is not None and not self._is_over

    def freeze(self, ranks: Iterable[int]) -> None:
        """Stop the launchers of ranks that still live, at once: one of them has seen nothing yet.

        Called by the thread that sees a rank end.
        """
        if not self.wants_crash:
            return
        ranks = list(ranks)
        launchers = {pid for rank in ranks for pid in self._list_launchers(rank)} - set(ranks)
        if launchers:
            self.stop(launchers)
            self.is_frozen = True

    def stop(self, pids: Iterable[int]) -> None:
        """Stop processes until the scene is released."""
        with self._lock:
            if self._is_over:
                return
            new = [pid for pid in pids if pid not in self._stopped]
            self._stopped |= dict.fromkeys(new)
            # The front must know before the command stops: it would stop with it.
            self.tell_front(list(self._stopped))
            _send(new, signal.SIGSTOP)

    def claim(self) -> None:
        """Keep the scene from now on; how long is counted from `begin`."""
        self.is_active, self._until_s = True, float("inf")
        self._since_ns = time.time_ns()
        self._seen.clear()

    def begin(self, hold_s: float, what: str) -> None:
        """Keep the scene for so long, and let others know of it."""
        if not self.is_active:
            self.claim()
        self._until_s = time.monotonic() + hold_s
        record = HoldRecord(what=what, since_ns=self._since_ns, hold_s=hold_s)
        with suppress(OSError):
            (self.job_dir / HOLD_FILE).write_bytes(msgspec.json.encode(record))
        # A file system that hangs must hang nobody else.
        threading.Thread(target=self._look_for_file, name="release", daemon=True).start()

    def why_over(self) -> str:
        """Return why the scene is not kept any longer; empty while it is."""
        if self._seen.is_set() or _is_new(self.job_dir / RELEASE_FILE, self._since_ns):
            return "it was released"
        return "its time is over" if time.monotonic() >= self._until_s else ""

    def release(self) -> None:
        """Let the processes go on, and keep no other scene of this attempt."""
        with self._lock:
            self._is_over, self.is_active, self.is_frozen = True, False, False
            stopped, self._stopped = list(self._stopped), {}
        _send(stopped, signal.SIGCONT)
        if stopped:
            self.tell_front([])
        for name in (HOLD_FILE, RELEASE_FILE):
            with suppress(OSError):
                (self.job_dir / name).unlink()

    def renew(self) -> None:
        """Keep the next scene, too: the launcher has started its ranks anew."""
        self._is_over = False

    def _list_launchers(self, rank: int) -> list[int]:
        """Return the processes from the parent of a rank up to the command; none if it is not."""
        found: list[int] = []
        pid = rank
        while pid != self.command_pid and len(found) < _MAX_DEPTH:
            start = read_start(pid)
            if start is None or start[0] <= 1:
                return []
            pid = start[0]
            found.append(pid)
        return found

    def _look_for_file(self) -> None:
        path, since_ns = self.root / RELEASE_FILE, self._since_ns
        while self.is_active and self._since_ns == since_ns:
            if _is_new(path, since_ns):
                self._seen.set()
                return
            time.sleep(_LOOK_S)


def _is_new(path: Path, since_ns: int) -> bool:
    """Return whether a file was made, or touched, since then; clocks of servers have ticks."""
    try:
        return path.lstat().st_mtime_ns >= since_ns - 1_000_000_000
    except OSError:
        return False


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
