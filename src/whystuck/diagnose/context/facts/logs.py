"""What logs say of a job."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

from whystuck.diagnose.context.facts.exceptions import Exceptions
from whystuck.diagnose.logs.cases import MAKERS
from whystuck.diagnose.logs.cases.ops.mismatch import list_complaining
from whystuck.diagnose.logs.story import LogView, Story
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.model import Evidence


@dataclass(frozen=True, eq=False, repr=False)
class Logs:
    """The story that logs tell."""

    evidence: Evidence
    exceptions: Exceptions

    @cached_property
    def story(self) -> Story:
        """What logs say went wrong, the root cause first."""
        is_running = self.evidence.incident.kind in {"stall", "snapshot"}
        makers = MAKERS if any(len(table) for table in self._told) else ()
        is_whole = is_running or self._has_ended_well
        return Story(LogView(self.evidence), makers, is_running=is_whole)

    @property
    def _has_ended_well(self) -> bool:
        """Whether ranks and launcher ended with 0: what printed a traceback was no end of them."""
        ends = [one.code for one in self.evidence.exits]
        return self.evidence.incident.command_exit == 0 and bool(ends) and not any(ends)

    @property
    def _told(self) -> tuple[Sized, ...]:
        """What a case can rest on."""
        seen = self.evidence
        told = seen.exceptions, seen.exits, seen.fatals
        return seen.logs.files, *told, seen.memory, seen.devices

    @cached_property
    def wire_complaints(self) -> frozenset[int]:
        """Ranks whose transport got another number of bytes than it expected; -1 when unknown."""
        return list_complaining(self.story.view, self.exceptions.by_rank)
