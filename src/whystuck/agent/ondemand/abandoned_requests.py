"""Requests that were given up, and that Kineto may hold all the same."""

from __future__ import annotations

from whystuck.agent.interfaces import FabricPoll
from whystuck.agent.ondemand.jobs import Job
from whystuck.agent.ondemand.raw_files import RawFile
from whystuck.agent.ondemand.runs import Run
from whystuck.agent.ondemand.stepping import StepWatch
from whystuck.evidence.agent import TraceState

_ACTIVITIES = 2
_STUCK_S = 3.0
# A rank that makes no step for ten seconds is stuck, and some more are for Kineto.
_FREE_NS = 20_000_000_000


def may_be_held(run: Run) -> bool:
    """Tell whether Kineto may still hold a request that has ended for us."""
    is_taken = bool(run.case.seen_ns) or run.job.iterations > 0
    return run.case.state is TraceState.EXPIRED and bool(run.case.sent_ns) and is_taken


class Held:
    """The last such request of each process, by its pid on this host."""

    def __init__(self) -> None:
        """Begin without one."""
        self._runs: dict[int, Run] = {}

    def __len__(self) -> int:
        """Return how many processes have one."""
        return len(self._runs)

    def close(self, run: Run) -> None:
        """Remove what was left for a trace that is over, unless Kineto may still hold it."""
        is_held = may_be_held(run)
        if is_held:
            self._runs[run.entry.pid] = run
        run.clean_up(is_held=is_held)
        self._forget_ways(run.job)

    def get(self, pid: int) -> Run | None:
        """Return that of a process."""
        return self._runs.get(pid)

    def note(self, poll: FabricPoll, pid: int, *, is_marked_anew: bool) -> None:
        """See whether it has come to its end after all.

        Args:
            poll: What the process says.
            pid: The process.
            is_marked_anew: Whether another trace has said something to its probe since.
        """
        run = self._runs.get(pid)
        if run is None:
            return
        part_bytes, file_bytes = run.file.look()
        is_seen = run.case.seen_ns or part_bytes >= 0
        is_idle = bool(poll.wants & _ACTIVITIES)
        if file_bytes >= 0 or (is_seen and is_idle and part_bytes < 0):
            self.forget(pid, is_marked_anew=is_marked_anew)

    def is_under_way(self, poll: FabricPoll, pid: int) -> bool:
        """Tell whether a process is busy with what was given up, or has to be freed of it first."""
        run = self._runs.get(pid)
        if run is None:
            return False
        is_stuck = bool(run.job.iterations) and run.steps.still_s(poll.time_ns) > _STUCK_S
        is_to_be_freed = is_stuck and run.can_rescue and poll.time_ns < run.ended_ns + _FREE_NS
        return is_to_be_freed or not poll.wants & _ACTIVITIES

    def tend(self, pid: int, now_ns: int) -> None:
        """Have one ended that waits for steps of a rank that is stuck: it keeps others out."""
        run = self._runs.get(pid)
        if run is not None and run.job.iterations:
            run.note_steps()
            if run.steps.is_moving(now_ns) is False:
                run.rescue()

    def forget(self, pid: int, *, is_marked_anew: bool = False) -> None:
        """Remove what was left for it."""
        run = self._runs.pop(pid, None)
        if run is not None:
            run.clean_up(is_held=False, is_marked_anew=is_marked_anew)
            self._forget_ways(run.job)

    def _forget_ways(self, job: Job) -> None:
        """Let go of what was needed to follow a job's traces: the agent remembers many jobs.

        Its ranks are compared with each other until the last one is over.
        """
        if not job.is_ended:
            return
        for run in job.runs:
            if self._runs.get(run.entry.pid) is not run:
                run.steps, run.counter, run.text, run.mark_folders = StepWatch(), None, "", ()
                run.file = RawFile("", None, run.file.pid)
