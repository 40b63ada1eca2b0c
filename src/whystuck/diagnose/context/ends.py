"""How ranks ended, and what of that has a reason of its own."""

from __future__ import annotations

from whystuck.diagnose.algorithms.failures.causes import (
    CRASH_SIGNALS,
    is_cascade,
    is_size_complaint,
    name_fatal,
    name_signal,
)
from whystuck.diagnose.algorithms.stacks.positions import Doing, locate
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.logs.cases import MAKERS
from whystuck.diagnose.logs.cases.mismatch import list_complaining
from whystuck.diagnose.logs.story import LogView, Story
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.live import PythonException

_SIGTERM = 15


class Ends(Facts):
    """What exits, exceptions, fatal signals and logs tell of the end of each rank."""

    @cached_property
    def story(self) -> Story:
        """What logs say went wrong, the root cause first."""
        is_running = self.evidence.incident.kind in {"stall", "snapshot"}
        return Story(LogView(self.evidence), MAKERS, is_running=is_running)

    @cached_property
    def root_exceptions(self) -> dict[int, PythonException]:
        """Uncaught exceptions that do not merely say that a peer is gone or late."""
        return {
            rank: item
            for rank, item in self.exceptions_by_rank.items()
            if item.is_main_thread
            and not is_cascade(item)
            and not is_size_complaint(item)
            and not self._is_caught(item)
        }

    def _is_caught(self, item: PythonException) -> bool:
        """Tell whether an exception that only a log holds did not end its rank."""
        ended = self.exits_by_rank.get(item.rank)
        return item.source == "log" and ended is not None and not ended.code

    @cached_property
    def is_crash(self) -> bool:
        """Whether somebody failed for a reason of its own, so that waiting is only a result."""
        if self.evidence.incident.kind in {"stall", "snapshot"}:
            return False
        return not self.timed_out and bool(self.exceptions_by_rank or self.failed_ranks)

    @cached_property
    def failed_ranks(self) -> frozenset[int]:
        """Ranks that ended with a code or signal of their own."""
        return frozenset(
            rank
            for rank, item in self.exits_by_rank.items()
            if (item.code or item.signal)
            and not item.after_launcher_kill
            and not self.is_cleaned_up(item)
        )

    @cached_property
    def wire_complaints(self) -> frozenset[int]:
        """Ranks whose transport got another number of bytes than it expected; -1 when unknown."""
        return list_complaining(self.story.view, self.exceptions_by_rank)

    @cached_property
    def crash_signals(self) -> dict[int, str]:
        """Ranks that ended by a signal of a fault in native code, with its name."""
        found = {
            rank: name
            for rank, item in self.exits_by_rank.items()
            if (name := name_signal(item)) in CRASH_SIGNALS
        }
        for fatal in self.evidence.fatals:
            if fatal.rank >= 0:
                found.setdefault(fatal.rank, name_fatal(fatal.reason))
        # An abort inside a collective follows from the end of a peer, when a peer has ended.
        causes = (set(found) | set(self.root_exceptions)) - self.aborted_in_collective
        killed = {rank for rank in self.failed_ranks if rank not in found}
        if causes or killed - set(self.cut_ranks):
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
    def cut_ranks(self) -> tuple[int, ...]:
        """Ranks that failed because a peer was gone or late."""
        return tuple(
            sorted(rank for rank, item in self.exceptions_by_rank.items() if is_cascade(item))
        )

    @cached_property
    def killed_ranks(self) -> dict[int, str]:
        """Ranks that a signal from outside ended, before anything else failed."""
        found = {
            rank: name
            for rank, item in self.exits_by_rank.items()
            if (name := name_signal(item)) and name not in CRASH_SIGNALS
            if not self.is_cleaned_up(item) and rank not in self.root_exceptions
        }
        # Several ranks that get SIGTERM get it from somebody who ends the job, not the rank.
        terms = [rank for rank, item in self.exits_by_rank.items() if item.signal == _SIGTERM]
        if len(terms) > 1:
            found = {rank: name for rank, name in found.items() if name != "SIGTERM"}
        hard = {rank: name for rank, name in found.items() if name == "SIGKILL"}
        # Launchers clean up with SIGTERM first: beside a SIGKILL, a SIGTERM is theirs.
        return hard or found

    @property
    def victims(self) -> list[int]:
        """All ranks of the job, for findings that take the job down."""
        return sorted(self.ranks)
