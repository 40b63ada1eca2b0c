"""Which rank each process of a job is, by all that its logs tell; nobody where they disagree."""

from __future__ import annotations

from collections.abc import Mapping

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK

_MAX_KEPT = 400_000


class Processes:
    """The ranks of processes, by host and number; the host is empty where it is not told."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, int], set[int]] = {}
        self._written: dict[tuple[str, int], set[int]] = {}
        self._by_pid: dict[int, set[int]] = {}

    def note(self, node: str, pid: int, rank: int, *, is_said: bool = False) -> None:
        """Take that a process is of a rank; of two ranks that are told of one, it is neither.

        What people say of it is ``is_said``; the rest is what processes and tools write.
        """
        if pid > 0 and 0 <= rank <= MAX_RANK and len(self._ranks) < _MAX_KEPT:
            self._ranks.setdefault((node, pid), set()).add(rank)
            self._by_pid.setdefault(pid, set()).add(rank)
            if not is_said:
                self._written.setdefault((node, pid), set()).add(rank)

    def doubt(self, node: str, pid: int) -> None:
        """Take that a number on a host is of several processes."""
        self._ranks.setdefault((node, pid), set()).update((UNKNOWN_RANK, UNKNOWN_RANK - 1))
        self._by_pid.setdefault(pid, set()).update((UNKNOWN_RANK, UNKNOWN_RANK - 1))

    def note_guess(self, node: str, pid: int, rank: int) -> None:
        """Take that a process may be of a rank: what is told for sure goes before it."""
        if (node, pid) not in self._ranks and self.find(node, pid) == UNKNOWN_RANK:
            self.note(node, pid, rank)

    def find(self, node: str, pid: int) -> int:
        """Return the rank of a process, if only one can be meant."""
        found = self._ranks.get((node, pid))
        if found is None:
            found = self._ranks.get(("", pid), set()) if node else self._by_pid.get(pid, set())
        elif not node:
            found = self._by_pid[pid]
        return next(iter(found)) if len(found) == 1 else UNKNOWN_RANK

    def find_on(self, node: str, pid: int) -> int:
        """Return the rank of a process of which the host is told; unknown where two are."""
        found = self._ranks.get((node, pid), set())
        return next(iter(found)) if len(found) == 1 else UNKNOWN_RANK

    def find_written(self, node: str, pid: int) -> int:
        """Return the rank that processes and tools write of a process; unknown where of two."""
        found = self._written.get((node, pid), set())
        return next(iter(found)) if len(found) == 1 else UNKNOWN_RANK

    def list_ranks(self) -> Mapping[tuple[str, int], frozenset[int]]:
        """Return all ranks that are told of each process."""
        return {process: frozenset(ranks) for process, ranks in self._ranks.items()}
