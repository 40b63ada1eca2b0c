"""What the kernel and the heartbeats say of the processes of each rank."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.diagnose.algorithms.processes.activity import Activity, measure_activity
from whystuck.diagnose.context.facts.stacks import Stacks
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.live import Beat, ProcessSample
from whystuck.evidence.model import Evidence


@dataclass(frozen=True, eq=False, repr=False)
class Processes:
    """The looks at the processes of each rank."""

    evidence: Evidence
    stacks: Stacks

    @cached_property
    def worker_looks(self) -> dict[int, dict[int, list[ProcessSample]]]:
        """Looks at the child processes of each rank, by their pid."""
        looks: dict[int, dict[int, list[ProcessSample]]] = {}
        for look in self.evidence.processes:
            if look.worker:
                looks.setdefault(look.rank, {}).setdefault(look.pid, []).append(look)
        return looks

    @cached_property
    def looks_by_rank(self) -> dict[int, list[ProcessSample]]:
        """Looks at the main process of each rank."""
        looks: dict[int, list[ProcessSample]] = {}
        for sample in self.evidence.processes:
            if not sample.worker:
                looks.setdefault(sample.rank, []).append(sample)
        return looks

    @cached_property
    def beats_by_rank(self) -> dict[int, Beat]:
        """The last heartbeat of each rank."""
        return {beat.rank: beat for beat in self.evidence.beats}

    @cached_property
    def activities(self) -> dict[int, Activity]:
        """How the main process of each rank moved."""
        ranks = set(self.stacks.samples_by_rank) | set(self.looks_by_rank)
        return {
            rank: measure_activity(
                self.looks_by_rank.get(rank, ()), self.stacks.samples_by_rank.get(rank, ())
            )
            for rank in ranks
        }

    def find_stopped_workers(self, rank: int) -> dict[int, Activity]:
        """Find the children of a rank that the kernel shows stopped at every look, by their pid."""
        looks = self.worker_looks.get(rank, {})
        found = {pid: measure_activity(mine, ()) for pid, mine in looks.items()}
        return {pid: activity for pid, activity in found.items() if activity.is_stopped}
