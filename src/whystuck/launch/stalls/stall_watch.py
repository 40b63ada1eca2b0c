"""The stall of a job: opened, looked at again, closed when the job moves, or ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from whystuck.evidence.fault_events import FaultKind
from whystuck.evidence.records import IncidentRecord
from whystuck.launch.background import Background
from whystuck.launch.command import end_processes
from whystuck.launch.incidents.held_scene import HeldScene
from whystuck.launch.incidents.incident import Incident
from whystuck.launch.incidents.keeper import IncidentKeeper
from whystuck.launch.options import OnStall, RunOptions
from whystuck.launch.processes.outside import OutsideSignal
from whystuck.launch.processes.rank_table import RankTable
from whystuck.launch.stalls.stall import StallClock

_RETRY_S = 60.0
_KILL_GRACE_S = 5.0
# What moves for a moment may be interrupted, of which we hear later than the ranks.
_SETTLE_S = 3.0


@dataclass
class StallWatch:
    """What is done about stalls, by the supervisor's thread; reports are made beside it.

    Attributes:
        incident: The stall that is open.
        moved_s: When the job was first seen to move again, on the monotonic clock.
        was_killed: Whether we ended the job because it is stuck.
        command_pid: The process of the command.
    """

    options: RunOptions
    keeper: IncidentKeeper
    table: RankTable
    clock: StallClock
    background: Background
    outside: OutsideSignal
    held: HeldScene
    incident: Incident | None = None
    moved_s: float = 0.0
    was_killed: bool = False
    command_pid: int = 0
    _next_look_s: float = 0.0
    _moved: threading.Event = field(default_factory=threading.Event)

    def note_moved(self) -> None:
        """Take it that the job has moved."""
        self._moved.set()

    def is_due(self, now_s: float, *, watched: bool) -> bool:
        """Return whether a stall is to be reported; ``watched`` is whether any rank is seen."""
        return bool(
            watched
            and self.table.all_pids()
            and self.clock.is_stalled(now_s)
            and now_s >= self._next_look_s
            and not (self.outside.is_pending or self.table.is_ending() or self.held.is_active)
            and not self.table.crashing_pids()
        )

    def open(self, now_s: float) -> None:
        """Begin to report a stall."""
        self._moved.clear()
        # Should the report fail for a fault of our own, the next try is a while away.
        self._next_look_s = now_s + _RETRY_S
        self.background.start(self._open)

    def _open(self) -> None:
        self.incident = self.keeper.open_stall(self._make_record(), self._moved.is_set)
        now_s = time.monotonic()
        # When the job moved meanwhile, a new stall may be looked at as soon as it is one.
        self._next_look_s = 0.0 if self.incident is None else now_s + self.clock.stalled_s(now_s)

    def _make_record(self) -> IncidentRecord:
        return IncidentRecord(
            kind="stall",
            opened_ns=time.time_ns(),
            world_size=self.table.world_size,
            stalled_s=round(self.clock.stalled_s(time.monotonic()), 1),
            limit_s=round(self.clock.limit_s, 1),
            longest_gap_s=round(self.clock.longest_gap_s, 1),
        )

    def follow(self, incident: Incident, now_s: float) -> None:
        """Look at the open stall: it may be over, to be ended, or to be looked at again."""
        if self.outside.is_pending or self.table.taking_down:
            return  # what moves now is the end
        if self._moved.is_set():
            self.moved_s = self.moved_s or now_s
            if now_s - self.moved_s > _SETTLE_S:
                self.background.start(self.take_moved())
            return
        stuck = incident.is_surely_stuck(self.clock.stalled_s(now_s), self.clock.limit_s)
        if stuck and (self.options.on_stall is OnStall.KILL or self._is_hold_over(incident)):
            self._kill()
        elif now_s >= self._next_look_s:
            stalled_s = self.clock.stalled_s(now_s)
            # Each look comes when the stall is twice as old as at the last one.
            self._next_look_s = now_s + max(stalled_s, 10.0)
            self.background.start(
                lambda: self.keeper.look_again(incident, stalled_s, self._moved.is_set)
            )

    def _is_hold_over(self, incident: Incident) -> bool:
        """Return whether a stuck job was kept for long enough; it is kept from now on if not."""
        if not self.options.holds_stalls:
            return False
        held_s = time.monotonic() - incident.opened_s
        return self.held.keep_stall(self.options.stall_hold_s - held_s)

    def take_moved(self) -> Callable[[], None]:
        """Return what closes the stall that is over."""
        incident, self.incident, self._next_look_s = self.incident, None, 0.0
        assert incident is not None  # noqa: S101 - the callers have looked
        self.held.drop("the job moves again")
        after_s = self.moved_s - incident.opened_s + incident.stalled_at_open_s
        self.moved_s = 0.0
        return lambda: self.keeper.close_stall(incident, after_s)

    def _kill(self) -> None:
        self.was_killed = True
        self.keeper.job.killed_ns = time.time_ns()
        self.table.taking_down = True
        self.held.let_go()
        text = "The job is ended because it is stuck (--on-stall, --hold)."
        self.keeper.fault_log.add(FaultKind.STALL, text)
        # A launcher that is killed leaves its ranks behind.
        end_processes([self.command_pid, *self.table.all_pids()], _KILL_GRACE_S)
