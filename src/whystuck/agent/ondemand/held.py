"""Requests that were given up, and that Kineto may hold all the same."""

from __future__ import annotations

from whystuck.agent.ondemand.runs import Run
from whystuck.agent.roles import FabricPoll
from whystuck.evidence.agent import TraceState

_ACTIVITIES = 2


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

    def add(self, run: Run) -> None:
        """Keep one in mind."""
        self._runs[run.entry.pid] = run

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

    def forget(self, pid: int, *, is_marked_anew: bool = False) -> None:
        """Remove what was left for it."""
        run = self._runs.pop(pid, None)
        if run is not None:
            if not is_marked_anew:
                run.unmark()
            run.file.remove()
