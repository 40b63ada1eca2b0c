"""What each rank raised, and which of that says that it waited or was cut off."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_cascade, is_timeout, name_known
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.live import PythonException
from whystuck.evidence.model import Evidence


@dataclass(frozen=True, eq=False, repr=False)
class Exceptions:
    """The uncaught exceptions of each rank."""

    evidence: Evidence

    @cached_property
    def timed_out_by_log(self) -> frozenset[int]:
        """Ranks whose log says that they waited in a collective until its time limit."""
        events = self.evidence.logs.events
        told = {
            one.rank
            for one in events
            if one.code == codes.COLLECTIVE_TIMEOUT and one.role == "cause"
        }
        return frozenset(told - {-1})

    @cached_property
    def by_rank(self) -> dict[int, PythonException]:
        """The uncaught exception of each rank; that of the main thread when there are several."""
        chosen: dict[int, PythonException] = {}
        for item in self.evidence.exceptions:
            known = chosen.get(item.rank)
            if item.is_caught:
                continue
            if known is None or (item.is_main_thread and not known.is_main_thread):
                chosen[item.rank] = item
        return chosen

    @cached_property
    def in_threads(self) -> dict[int, tuple[PythonException, ...]]:
        """What ended threads of each rank, whose process went on; the oldest one first."""
        found: dict[int, list[PythonException]] = {}
        for item in self.evidence.thread_errors:
            found.setdefault(item.rank, []).append(item)
        return {rank: tuple(items) for rank, items in found.items()}

    @cached_property
    def timed_out(self) -> frozenset[int]:
        """Ranks whose collective ran into its time limit: they waited until then.

        Those that waited for others to come, before there was any group, are not among them.
        """
        return frozenset(
            rank
            for rank, item in self.by_rank.items()
            if is_timeout(item) and name_known(item) != codes.RENDEZVOUS_FAILED
        )

    @cached_property
    def cut_ranks(self) -> tuple[int, ...]:
        """Ranks that failed because a peer was gone or late."""
        return tuple(sorted(rank for rank, item in self.by_rank.items() if is_cascade(item)))
