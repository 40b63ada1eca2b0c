"""How often ranks are seen in their garbage collectors, and how many full collections there were.

A process runs nothing of Python while its collector does, so that this is seen from outside, in its
memory. That needs what py-spy needs too; without, nothing is known. Who reads the memory of a
process may have to wait for its lock, as long as a thread of it that has the lock waits for a disk:
nothing is read while any thread waits in the kernel.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from whystuck.collect.processes.proc_files import list_threads, read_state
from whystuck.collect.processes.tracker import Tracker
from whystuck.evidence.nodes.records import GarbageRecord

# As `whystuck.probe.collector` says: nine counts, of which the seventh is that of full collections,
# and whether one runs.
_STATE = struct.Struct("9ni")
_FULL, _IS_RUNNING = 6, 9
# A look takes about 10 microseconds a thread; all looks together get this share of a core.
_EVERY_S = 0.2
_COST_SHARE = 0.002
# Until a rank has said where to look.
_ASK_EVERY_S = 2.0
_POINT_EVERY_NS = 1_000_000_000
_MAX_POINTS = 512


@dataclass
class _RankGarbage:
    """What was seen of one rank; when there are many points, every other one is left out."""

    pid: int
    record: GarbageRecord
    find_address: Callable[[int], int]
    address: int = 0
    next_ask_s: float = 0.0
    looks: int = 0
    seen: int = 0
    # Looks at a collection that may turn out to be a full one, and how many there were before it.
    doubtful: int = 0
    full: int = 0
    every_ns: int = _POINT_EVERY_NS
    next_point_ns: int = 0

    def look(self, now_s: float) -> None:
        """Look once; nothing when the process is gone, or does not tell where to look."""
        if not self.address:
            if now_s < self.next_ask_s:
                return
            self.next_ask_s = now_s + _ASK_EVERY_S
            self.address = self.find_address(self.pid)
        if self.address < 0 or _waits_in_kernel(self.pid):
            return
        try:
            state = _read_state(self.pid, self.address) if self.address else None
        except PermissionError:
            self.address = -1  # each attempt may be a line in the kernel's log
            return
        if state is None:
            return
        full, is_running = state[_FULL], state[_IS_RUNNING]
        if full < self.full or min(state) < 0 or is_running not in (0, 1):
            self.address = -1  # something else is there: the process runs another program
            return
        self._count(full, bool(is_running))
        self._add_point(time.time_ns())

    def _count(self, full: int, is_running: bool) -> None:  # noqa: FBT001 - one of two figures
        self.looks += 1
        if full > self.full:
            self.seen += self.doubtful
        if full > self.full or not is_running:
            # Young ones take microseconds, and add nothing to the number of full ones.
            self.doubtful = 0
        self.doubtful += is_running
        self.full = full

    def _add_point(self, now_ns: int) -> None:
        if now_ns < self.next_point_ns:
            return
        points = self.record.points
        points.append((now_ns, self.looks, self.seen, self.full))
        if len(points) > _MAX_POINTS:
            del points[1::2]
            self.every_ns *= 2
        self.next_point_ns = now_ns + self.every_ns


class GarbageTracker(Tracker[_RankGarbage]):
    """Looks at the garbage collectors of all ranks of a node, five times a second."""

    def __init__(self, node: str, find_address: Callable[[int], int]) -> None:
        """Begin with no process.

        Args:
            node: The name of the node.
            find_address: Returns the address that a process tells, 0 while it has told none.
        """
        super().__init__(
            lambda pid: _RankGarbage(pid, GarbageRecord(pid=pid, node=node), find_address),
            _EVERY_S,
            _COST_SHARE,
        )

    def find(self, pid: int) -> GarbageRecord | None:
        """Return what is known of a process, or None."""
        known = self._by_pid.get(pid)
        return None if known is None else known.record


def _waits_in_kernel(pid: int) -> bool:
    return any(read_state(f"{pid}/task/{thread}") == "D" for thread in list_threads(pid))


def _read_state(pid: int, address: int) -> tuple[int, ...] | None:
    """Return what is there, None when the process is gone; raises PermissionError."""
    try:
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        data = os.pread(descriptor, _STATE.size, address)
    except (OSError, OverflowError):
        return None
    finally:
        os.close(descriptor)
    return _STATE.unpack(data) if len(data) == _STATE.size else None
