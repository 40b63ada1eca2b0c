"""The kind of rule that tells what NCCL says of its own set-up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.context.nccl_facts import NcclFacts, read_nccl_facts
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Rule
from whystuck.evidence.finding import Finding, Severity

# What a slow or broken network, or a fault of the library, may be behind.
_FAILED = {
    codes.NATIVE_CRASH,
    codes.PEER_LOST,
    codes.COLLECTIVE_TIMEOUT,
    codes.RENDEZVOUS_FAILED,
    codes.TRANSFER_STALLED,
}


class NcclRule(Rule):
    """A rule about NCCL's set-up: a note in a job that is well, a warning in one that failed so.

    Mostly something else says what failed. What makes a job slow and fails nothing is a warning in
    logs that somebody has brought, too.
    """

    severity = Severity.WARNING
    needs: ClassVar[tuple[str, ...]] = ("logs",)

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what the lines of NCCL tell."""
        del policy
        facts = read_nccl_facts(scene.story.view)
        has_failed = any(case.code in _FAILED for case in scene.story.cases)
        has_failed = has_failed or scene.evidence.incident.kind == "stall"
        is_asked = scene.evidence.incident.kind == "files"
        for finding in self.look(facts, scene):
            is_told = has_failed or (is_asked and self.is_slowing(finding))
            yield finding if is_told else replace(finding, severity=Severity.NOTE)

    def is_slowing(self, finding: Finding) -> bool:  # noqa: ARG002
        """Tell whether a finding slows a job down without any failure."""
        return False

    def look(self, facts: NcclFacts, scene: Scene) -> Iterator[Finding]:
        """Yield what the lines of NCCL tell, as warnings."""
        raise NotImplementedError
