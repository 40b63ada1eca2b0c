"""What rules judge: the facts, and what was worked out from them."""

from __future__ import annotations

from whystuck.diagnose.context.divergences import Divergences
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.losses import Losses, find_losses, is_lost_work
from whystuck.diagnose.context.step_pace import Pace
from whystuck.diagnose.context.suspects.suspects import Suspects
from whystuck.diagnose.context.wait_cycle import WaitCycle
from whystuck.diagnose.logs.story import Story
from whystuck.diagnose.shared import cached_property


class Scene(Facts):
    """The shared analysis of one evidence. Every value is made on first use."""

    @property
    def story(self) -> Story:
        """What logs say went wrong, the root cause first."""
        return self.logs.story

    @cached_property
    def divergences(self) -> Divergences:
        """Where the calls of ranks part."""
        return Divergences(
            self.evidence,
            self.logs,
            self.ops,
            self.exits,
            self.waits,
            self.movement,
        )

    @cached_property
    def wait_cycle(self) -> WaitCycle:
        """Ranks that wait for each other."""
        return WaitCycle(
            self.evidence,
            self.ops,
            self.ranks,
            self.waits,
            self.movement,
            self.divergences,
        )

    @cached_property
    def suspects(self) -> Suspects:
        """What keeps each suspect."""
        return Suspects(self, self.divergences, self.wait_cycle)

    @cached_property
    def losses(self) -> Losses:
        """Collectives that ranks called and torch never issued, and whom they keep waiting."""
        raised = {
            rank for rank, item in self.exits.root_exceptions.items() if not is_lost_work(item)
        }
        # A rank that failed for a reason of its own explains more than what was lost before.
        ended = set(self.exits.killed_ranks) | set(self.exits.crash_signals)
        return find_losses(self, has_other_cause=bool(self.exits.is_crash and (raised or ended)))

    @cached_property
    def pace(self) -> Pace:
        """How ranks keep step in a job that goes on: who is late, and who waits."""
        return Pace(
            self.evidence,
            self.policy,
            self.logs,
            self.ops,
            self.exits,
            self.waits,
            self.movement,
            self.divergences,
        )
