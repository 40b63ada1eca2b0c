"""The evidence of one job as small values, each of which says what it needs; no judgement yet."""

from __future__ import annotations

from whystuck.diagnose.context.facts.exceptions import Exceptions
from whystuck.diagnose.context.facts.exits import Exits
from whystuck.diagnose.context.facts.logs import Logs
from whystuck.diagnose.context.facts.movement import Movement
from whystuck.diagnose.context.facts.ops import Ops
from whystuck.diagnose.context.facts.processes import Processes
from whystuck.diagnose.context.facts.ranks import Ranks
from whystuck.diagnose.context.facts.stacks import Stacks
from whystuck.diagnose.context.facts.waits import Waits
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.shared import cached_property
from whystuck.diagnose.traces.costs import TraceFacts
from whystuck.evidence.model import Evidence


class Facts:
    """What is known of the ranks of one job. Every value is made on first use."""

    def __init__(self, evidence: Evidence, policy: Policy) -> None:
        self.evidence = evidence
        self.policy = policy

    @cached_property
    def exceptions(self) -> Exceptions:
        """What each rank raised."""
        return Exceptions(self.evidence)

    @cached_property
    def ops(self) -> Ops:
        """The recorded ops."""
        return Ops(self.evidence, self.exceptions)

    @cached_property
    def ranks(self) -> Ranks:
        """The ranks of the job."""
        return Ranks(self.evidence, self.ops)

    @cached_property
    def stacks(self) -> Stacks:
        """Where each rank was."""
        return Stacks(self.evidence, self.exceptions)

    @cached_property
    def processes(self) -> Processes:
        """What its processes did."""
        return Processes(self.evidence, self.stacks)

    @cached_property
    def exits(self) -> Exits:
        """How each rank ended."""
        return Exits(self.evidence, self.exceptions, self.ops, self.stacks, self.processes)

    @cached_property
    def logs(self) -> Logs:
        """What logs say."""
        return Logs(self.evidence, self.exceptions)

    @cached_property
    def waits(self) -> Waits:
        """Who waits for whom."""
        return Waits(
            self.evidence,
            self.policy,
            self.exceptions,
            self.ops,
            self.ranks,
            self.stacks,
            self.processes,
            self.exits,
        )

    @cached_property
    def movement(self) -> Movement:
        """Whether the job moved."""
        return Movement(
            self.evidence,
            self.policy,
            self.exceptions,
            self.ops,
            self.stacks,
            self.processes,
            self.exits,
            self.waits,
        )

    @cached_property
    def traces(self) -> TraceFacts:
        """What traces tell of the cost of each cause."""
        return TraceFacts(self.evidence.traces, self.policy)
