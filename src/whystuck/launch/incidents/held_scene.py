"""When the scene of a crash or a stall is kept, and what is said of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from whystuck.evidence.fault_events import FaultKind
from whystuck.evidence.ranks import format_ranks
from whystuck.launch.incidents.keeper import IncidentKeeper
from whystuck.launch.incidents.scene_hold import SceneHold
from whystuck.launch.listener import Listener
from whystuck.launch.processes.outside import OutsideSignal
from whystuck.launch.processes.rank_table import RankTable
from whystuck.safe_text.escaping import show_line


@dataclass
class HeldScene:
    """Joins what keeps processes with what tells of it; ``say`` prints a text for the user."""

    hold: SceneHold
    keeper: IncidentKeeper
    table: RankTable
    listener: Listener
    outside: OutsideSignal
    say: Callable[[str], None]
    _is_told: bool = False

    @property
    def is_active(self) -> bool:
        """Whether a scene is kept, or about to be."""
        return self.hold.is_active

    @property
    def is_frozen(self) -> bool:
        """Whether a rank is gone and its launcher was stopped before it saw that."""
        return self.hold.is_frozen

    def take_crash(self) -> None:
        """Take the scene of a failure, and keep it where that was asked for."""
        if not self.hold.wants_crash or self.outside.is_pending:
            self.keeper.take_exit_scene()
            return
        self.hold.claim()
        self.keeper.take_exit_scene()
        # Those that sleep in their handler would wake and die within seconds.
        self.hold.stop(self.table.crashing_pids())
        self.keeper.report_exit_scene()
        if self.hold.is_active:
            self._begin(self.hold.hold_s or 0.0)

    def keep_stall(self, left_s: float) -> bool:
        """Keep a stuck job for ``left_s``; return whether it was kept for long enough."""
        if not self.is_active:
            if left_s <= 0:
                return True
            self._begin(left_s)
        if reason := self.hold.why_over():
            self.drop(reason)
            return True
        return False

    def look(self) -> None:
        """Let a crash go whose scene was kept for long enough; called again and again."""
        if self.outside.is_pending:
            self.drop("a signal came")
            if self.is_frozen:
                self.let_go()
        elif not self.keeper.has_no_exit_scene and (reason := self.hold.why_over()):
            self.drop(reason)

    def drop(self, reason: str) -> None:
        """Let the job go on to its end, and tell why; nothing where no scene is kept."""
        if not self.is_active:
            return
        self.let_go()
        if self._is_told:
            text = f"The scene is released: {reason}."
            self.keeper.fault_log.add(FaultKind.HOLD, text, details={"reason": reason})
        self._is_told = False

    def let_go(self) -> None:
        """Let everybody go that waits for us."""
        if self.is_active or self.is_frozen:
            self.table.delay_ending(time.time_ns())
        self.listener.release()
        self.table.wake_crashing()
        self.hold.release()

    def _begin(self, hold_s: float) -> None:
        alive = [one for one in self.table.processes() if one.is_alive]
        ranks = format_ranks({one.rank for one in alive})
        what = f"ranks {ranks} stay" if alive else "no rank is left"
        self.hold.begin(hold_s, what)
        self._is_told = True
        text = f"The scene is kept for {hold_s:.0f} s: {what}."
        self.keeper.fault_log.add(FaultKind.HOLD, text, details={"hold_s": hold_s})
        how = f"`whystuck release`, a signal, or `touch {show_line(str(self.hold.root))}/release`"
        said = f"the scene is kept for {hold_s:.0f} s: {what}; {how} ends that"
        self.say(f"whystuck: {said}\n")
