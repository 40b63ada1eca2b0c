"""Which ranks no text names: they were worked out from local ranks, or from tasks of a launcher."""

from __future__ import annotations

from collections.abc import Sequence

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.logs.owners.known_logs import KnownLog
from whystuck.parse.logs.owners.processes import Processes

# A host of most clusters has no more local ranks than up to this one.
_LAST_LOCAL = 7


class InferredRanks:
    """Remembers what was worked out: that a host is the first, or a task one rank, is a guess."""

    def __init__(self, logs: Sequence[KnownLog], processes: Processes, world_size: int) -> None:
        """Take the ranks that texts name.

        Args:
            logs: All logs.
            processes: The ranks of processes that are told.
            world_size: The number of ranks, 0 when nothing tells.
        """
        self._world_size = world_size
        parts = [log.source.part for log in logs]
        told = {rank for one in parts for rank in (*one.facts.ranks, *one.facts.said_ranks)}
        told |= {seen.rank for one in parts for seen in one.exits}
        told |= {rank for ranks in processes.list_ranks().values() for rank in ranks}
        self._told = {rank for rank in told if rank >= 0}
        self._found = _list_tasks(logs)
        locals_ = [local for one in parts for local in one.facts.local_by_pid.values()]
        locals_ += [seen.local for one in parts for seen in one.exits]
        locals_ += [seen.local for one in parts for seen in one.stacks]
        locals_ += [int(row.groups.get("local", "0")) for one in parts for row in one.tabled]
        self.has_other_hosts = max(self._told, default=0) > max(_LAST_LOCAL, *locals_, 0)

    def note(self, rank: int) -> int:
        """Take a rank that was worked out, and return it."""
        self._found.add(rank)
        return rank

    def list_ranks(self) -> frozenset[int]:
        """Return the ranks that were worked out, where the job may have others of such numbers."""
        is_whole = 0 < self._world_size <= len(self._found | self._told)
        return frozenset() if is_whole else frozenset(self._found - self._told)


def _list_tasks(logs: Sequence[KnownLog]) -> set[int]:
    """Return the tasks that are taken for ranks, as nothing tells what they start."""
    taken = [log for log in logs if log.tasks_are_ranks and not log.source.part.facts.rank_by_task]
    return {seen.task for log in taken for seen in log.source.part.exits} - {UNKNOWN_RANK}
