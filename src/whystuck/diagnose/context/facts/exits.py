"""How ranks ended, and what of that has a reason of its own."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.diagnose.algorithms.failures.causes import (
    CRASH_SIGNALS,
    is_cascade,
    is_size_complaint,
    name_fatal,
    name_signal,
)
from whystuck.diagnose.algorithms.failures.departures import explains
from whystuck.diagnose.algorithms.stacks.positions import Doing, locate
from whystuck.diagnose.context.facts.exceptions import Exceptions
from whystuck.diagnose.context.facts.ops import Ops
from whystuck.diagnose.context.facts.processes import Processes
from whystuck.diagnose.context.facts.stacks import Stacks
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.live import Departure, ExitRecord, PythonException
from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.collectives import Frame

_SIGABRT, _SIGKILL, _SIGTERM = 6, 9, 15
_LAUNCHER_GRACE_NS = 4_000_000_000


@dataclass(frozen=True, eq=False, repr=False)
class Exits:
    """The end of each rank, by its exit, its exceptions and fatal signals."""

    evidence: Evidence
    exceptions: Exceptions
    ops: Ops
    stacks: Stacks
    processes: Processes

    @cached_property
    def by_rank(self) -> dict[int, ExitRecord]:
        """How each rank ended, when it did."""
        return {ended.rank: ended for ended in self.evidence.exits if ended.rank >= 0}

    @cached_property
    def departures(self) -> dict[int, Departure]:
        """The call by which each rank ended itself, where one is known and fits its end.

        A rank whose main program is over may still wait for its threads.
        """
        ends = self.by_rank
        exiting = {rank for rank, at in self.stacks.positions.items() if at.doing is Doing.EXITING}
        return {
            item.rank: item
            for item in self.evidence.departures
            if (explains(item, ends[item.rank]) if item.rank in ends else item.rank in exiting)
        }

    def find_last_frames(self, rank: int) -> tuple[Frame, ...]:
        """Return where a rank was last seen: its stack, else the site of its last op."""
        position = self.stacks.positions.get(rank)
        return position.frames if position else self.ops.find_last_site(rank)

    @cached_property
    def left_and_cut(self) -> tuple[list[int], list[int]]:
        """Ranks that ended well, and those that then lost connections; none where more failed.

        What has a reason of its own, of whatever rank, goes before.
        """
        left = sorted(rank for rank, item in self.by_rank.items() if item.code == 0)
        cut = sorted(rank for rank, item in self.exceptions.by_rank.items() if is_cascade(item))
        others = [
            rank
            for rank in self.failed_ranks - set(cut)
            if rank not in self.exceptions.by_rank or rank in self.root_exceptions
        ]
        if not left or not cut or self.root_exceptions or others:
            return [], []
        return left, cut

    @cached_property
    def dead(self) -> frozenset[int]:
        """Ranks that ended by themselves or from outside, not by their launcher's clean-up."""
        zombies = {
            rank for rank, item in self.processes.activities.items() if item.state in {"Z", "X"}
        }
        ended = {rank for rank, item in self.by_rank.items() if not self.is_cleaned_up(item)}
        return frozenset(ended | zombies) - self.exceptions.timed_out - self.gave_up

    def is_cleaned_up(self, ended: ExitRecord) -> bool:
        """Tell whether the launcher ended a rank because of another one's failure.

        Launchers send SIGTERM first: a SIGKILL within their time of grace is not theirs.
        """
        if not ended.signal:
            return False
        incident = self.evidence.incident
        if incident.outside_signal or incident.killed_ns:
            return True
        if ended.signal == _SIGKILL and ended.ended_ns:
            first_ns = min(item.ended_ns for item in self.by_rank.values())
            return ended.after_launcher_kill and ended.ended_ns - first_ns > _LAUNCHER_GRACE_NS
        others_raised = bool(set(self.exceptions.by_rank) - {ended.rank})
        return ended.after_launcher_kill or (ended.signal == _SIGTERM and others_raised)

    @cached_property
    def root_exceptions(self) -> dict[int, PythonException]:
        """Uncaught exceptions that do not merely say that a peer is gone or late."""
        return {
            rank: item
            for rank, item in self.exceptions.by_rank.items()
            if item.is_main_thread
            and not is_cascade(item)
            and not is_size_complaint(item)
            and not self._is_caught(item)
        }

    def _is_caught(self, item: PythonException) -> bool:
        """Tell whether an exception that only a log holds did not end its rank."""
        ended = self.by_rank.get(item.rank)
        return item.source == "log" and ended is not None and not ended.code

    @cached_property
    def is_crash(self) -> bool:
        """Whether somebody failed for a reason of its own, so that waiting is only a result."""
        if self.evidence.incident.kind in {"stall", "snapshot"}:
            return False
        if self.exceptions.timed_out:
            return False
        return bool(self.exceptions.by_rank or self.failed_ranks - self.gave_up)

    @cached_property
    def gave_up(self) -> frozenset[int]:
        """Ranks that their own watchdog ended, by pasted logs: it aborts who waited in vain."""
        if not self.stacks.are_pasted:
            return frozenset()
        waited = self.exceptions.timed_out_by_log
        return frozenset(
            rank
            for rank, item in self.by_rank.items()
            if rank in waited and item.signal == _SIGABRT and rank not in self.exceptions.by_rank
        )

    @cached_property
    def failed_ranks(self) -> frozenset[int]:
        """Ranks that ended with a code or signal of their own."""
        return frozenset(
            rank
            for rank, item in self.by_rank.items()
            if (item.code or item.signal)
            and not item.after_launcher_kill
            and not self.is_cleaned_up(item)
        )

    @cached_property
    def crash_signals(self) -> dict[int, str]:
        """Ranks that ended by a signal of a fault in native code, with its name."""
        found = {
            rank: name
            for rank, item in self.by_rank.items()
            if (name := name_signal(item)) in CRASH_SIGNALS
        }
        for fatal in self.evidence.fatals:
            if fatal.rank >= 0:
                found.setdefault(fatal.rank, name_fatal(fatal.reason))
        # An abort inside a collective follows from the end of a peer, when a peer has ended.
        causes = (set(found) | set(self.root_exceptions)) - self.aborted_in_collective
        killed = {rank for rank in self.failed_ranks if rank not in found}
        if causes or killed - set(self.exceptions.cut_ranks):
            found = {
                rank: name for rank, name in found.items() if rank not in self.aborted_in_collective
            }
        return found

    @cached_property
    def aborted_in_collective(self) -> frozenset[int]:
        """Ranks that aborted while their main thread was in a collective."""
        return frozenset(
            fatal.rank
            for fatal in self.evidence.fatals
            if name_fatal(fatal.reason) == "SIGABRT"
            and fatal.threads
            and locate(fatal.threads[0].frames).doing in {Doing.COLLECTIVE, Doing.BACKWARD}
        )

    @cached_property
    def killed_ranks(self) -> dict[int, str]:
        """Ranks that a signal from outside ended, before anything else failed."""
        found = {
            rank: name
            for rank, item in self.by_rank.items()
            if (name := name_signal(item)) and name not in CRASH_SIGNALS
            if not self.is_cleaned_up(item) and rank not in self.root_exceptions
        }
        # Several ranks that get SIGTERM get it from somebody who ends the job, not the rank.
        terms = [rank for rank, item in self.by_rank.items() if item.signal == _SIGTERM]
        if len(terms) > 1:
            found = {rank: name for rank, name in found.items() if name != "SIGTERM"}
        hard = {rank: name for rank, name in found.items() if name == "SIGKILL"}
        # Launchers clean up with SIGTERM first: beside a SIGKILL, a SIGTERM is theirs.
        return hard or found
