"""What logs say of a job."""

from __future__ import annotations

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
        return Story(LogView(self.evidence), MAKERS, is_running=is_running)

    @cached_property
    def wire_complaints(self) -> frozenset[int]:
        """Ranks whose transport got another number of bytes than it expected; -1 when unknown."""
        return list_complaining(self.story.view, self.exceptions.by_rank)
