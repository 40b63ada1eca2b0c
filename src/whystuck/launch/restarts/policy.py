"""Whether a job is started again after a round that failed."""

from __future__ import annotations

from dataclasses import dataclass, field

from whystuck.launch.restarts.ending import RootCause, RoundEnd
from whystuck.launch.restarts.progress import NO_STEP

STOPPED = "a signal asked for its end"
_PREEMPTED = "C207"


@dataclass
class RestartPolicy:
    """Counts restarts, and remembers how far the job came, and why it failed since then.

    Attributes:
        max_restarts: How often the command is started again at most.
        restarts: How often it was.
    """

    max_restarts: int
    restarts: int = 0
    _seen: set[tuple[object, ...]] = field(default_factory=set)
    _steps: int = 0
    _printed_step: int = NO_STEP

    @property
    def may_restart(self) -> bool:
        """Whether a restart is left."""
        return self.restarts < self.max_restarts

    def why_not(self, end: RoundEnd) -> str:
        """Return why the job is not started again; empty where it is, and that is counted."""
        if self._note_progress(end):
            self._seen.clear()
        if reason := self._find_reason(end):
            return reason
        if end.cause is not None:
            self._seen.add(end.cause.identity)
        self.restarts += 1
        return ""

    def _find_reason(self, end: RoundEnd) -> str:
        if end.is_asked_for:
            return STOPPED
        if end.ended_well:
            return f"it has ended well on {', '.join(end.ended_well)}"
        if end.too_few:
            return end.too_few
        if end.cause is not None and (reason := self._judge_cause(end, end.cause)):
            return f"{reason}: {end.cause.describe()}"
        if not self.may_restart:
            return f"all {self.max_restarts} restarts are used"
        return ""

    def _judge_cause(self, end: RoundEnd, cause: RootCause) -> str:
        if cause.is_hardware:
            return f"{end.node or 'this node'} is not fit"
        if cause.code == _PREEMPTED:
            return "it was ended from outside"
        if cause.identity in self._seen:
            where = f", on {end.node}" if end.node else ""
            return f"the same cause came twice without progress{where}"
        return ""

    def _note_progress(self, end: RoundEnd) -> bool:
        """Take how far a round came; return whether that is further than any one before.

        Steps are counted from 0 in each round, unless the job tells their numbers. One that goes
        on from a checkpoint, and prints the number of its step, is believed that.
        """
        has_progress = end.steps > self._steps or end.printed_step > self._printed_step
        self._steps = max(self._steps, end.steps)
        self._printed_step = max(self._printed_step, end.printed_step)
        return has_progress
