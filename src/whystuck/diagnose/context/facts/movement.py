"""Whether the job stood still when it was looked at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whystuck.diagnose.algorithms.ops.progress import find_longest_wait, find_oldest, slice_rank
from whystuck.diagnose.algorithms.ops.waits import NO_ROW
from whystuck.diagnose.algorithms.processes.storage import find_silence
from whystuck.diagnose.context.facts.exceptions import Exceptions
from whystuck.diagnose.context.facts.exits import Exits
from whystuck.diagnose.context.facts.ops import Ops
from whystuck.diagnose.context.facts.processes import Processes
from whystuck.diagnose.context.facts.stacks import Stacks
from whystuck.diagnose.context.facts.waits import Waits
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.model import Evidence

_NS_PER_S = 1e9


@dataclass(frozen=True, eq=False, repr=False)
class Movement:
    """Whether the job moved."""

    evidence: Evidence
    policy: Policy
    exceptions: Exceptions
    ops: Ops
    stacks: Stacks
    processes: Processes
    exits: Exits
    waits: Waits

    @cached_property
    def stalled_s(self) -> float:
        """How long nothing moved: as the watcher saw it, or the age of the oldest pending op."""
        incident = self.evidence.incident
        if incident.stalled_s or not incident.opened_ns or not self.waits.pending:
            return incident.stalled_s
        table = self.ops.table
        rows = [wait.row for wait in self.waits.pending if wait.row != NO_ROW]
        oldest = min((int(table.created_ns[row]) for row in rows), default=0)
        return max(0.0, (incident.opened_ns - oldest) / _NS_PER_S) if oldest else 0.0

    @cached_property
    def is_stalled(self) -> bool:
        """Whether the evidence was taken in a stall. Dumps that people bring are taken as one."""
        incident = self.evidence.incident
        if incident.is_interrupt and incident.is_moving:
            return False  # ranks end anywhere
        if incident.command_exit == 0:
            return False  # an op without an end is one whose end came too late to be recorded
        if incident.kind != "snapshot":
            return True
        if self.stalled_s:
            return self.stalled_s >= self.policy.snapshot_stall_s
        # The age of sends and receives that only stacks show is not known.
        return self.is_still

    @property
    def is_hung(self) -> bool:
        """Whether the job stood still although nobody had failed."""
        return not self.exits.is_crash and self.is_stalled

    @cached_property
    def was_moving(self) -> bool:
        """Whether the job may have moved when its dumps were written: no pending op was old then.

        Only devices have ops in their queues all the time, and only files that were written right
        after their newest op tell; a copy has a later time. What was normal before tells how old
        an op in the queue may be, where hosts run far ahead.
        """
        table = self.ops.table
        is_from_files = self.evidence.incident.kind == "files"
        if not is_from_files or self.waits.waiting_by_stack or self.exceptions.by_rank:
            return False
        if not self.waits.pending or not self.ops.device_ranks:
            return False
        written_ns = {dump.rank: dump.modified_ns for dump in table.dumps}
        usual_s = min(find_longest_wait(table) / _NS_PER_S, self.policy.longest_queue_s)
        ages_s = [
            (written_ns[rank] - int(table.created_ns[row])) / _NS_PER_S
            for rank, row in find_oldest(table).items()
        ]
        limit_s = self.policy.moving_dump_s + usual_s
        return bool(ages_s) and -self.policy.clock_slack_s <= min(ages_s) <= max(ages_s) < limit_s

    @property
    def has_moved_again(self) -> bool:
        """Whether the job went on later: it was not stuck, its ranks only waited."""
        return self.evidence.incident.closed_after_s is not None

    @cached_property
    def has_made_steps(self) -> bool:
        """Whether stacks stand in a log between steps, each further than the one before.

        Nothing below them may tell of an end, and nobody may say that the job stands still: who
        shows the logs of several ranks, one below the other, does.
        """
        logs, stacks = self.evidence.logs, self.evidence.stacks
        if self.evidence.incident.kind != "files" or len(logs.files) != 1 or not stacks:
            return False
        file = logs.files[0]
        rows = [one.row if one.artifact == file.artifact else None for one in stacks]
        known = [row for row in rows if row is not None]
        failed = self.exits.is_crash or bool(self.exceptions.by_rank)
        if failed or len(known) < len(rows) or not file.steps_since < min(known):
            return False
        is_over = any(_is_end(one, min(known)) for one in logs.events)
        return max(known) < file.steps_until and not is_over

    @cached_property
    def is_still(self) -> bool:
        """Whether no main thread moved over several samples, although somebody waits."""
        resting = [
            self.processes.activities[rank]
            for rank in self.waits.waiting_by_stack - self.ops.recorded_ranks
        ]
        if resting and all(0 < look.span_s <= look.asleep_s for look in resting):
            # Whatever those do that they wait for.
            return True
        if any(look.woke for look in resting):
            return False
        looks = [self.processes.activities[rank] for rank in self.stacks.samples_by_rank]
        is_silent = any(find_silence(one) for one in self.processes.looks_by_rank.values())
        return (
            (bool(self.waits.waiting) or is_silent)
            and min((look.samples for look in looks), default=0) > 1
            and not any(look.function_moves for look in looks)
        )

    def has_rhythm(self, rank: int) -> bool:
        """Tell whether training had found its rhythm: a step was made, or call sites repeat."""
        beat = self.processes.beats_by_rank.get(rank)
        if beat is not None and beat.optimizer_steps:
            return True
        table = self.ops.table
        own = slice_rank(table, rank)
        sites, created_ns = table.site[own], table.created_ns[own]
        for site in np.unique(sites).tolist():
            times_ns = created_ns[sites == site]
            # Loops that send parameters around before training repeat a site much faster.
            if len(times_ns) >= self.policy.rhythm_uses and (
                not times_ns[0] or np.mean(np.diff(times_ns)) >= self.policy.rhythm_gap_ns
            ):
                return True
        return False


def _is_end(event: LogEvent, row: int) -> bool:
    """Return whether a line tells of an end from a row on, or a person of a job that stands still.

    A question is none: `does it hang after each epoch?`.
    """
    if event.signature == "paste.stopped":
        return "?" not in event.text
    return event.row >= row and event.role in {"cause", "cascade"}
