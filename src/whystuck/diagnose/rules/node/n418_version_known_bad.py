"""N418 version-known-bad."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec.structs import replace

from whystuck.diagnose.check_rule import tell_problems
from whystuck.diagnose.context.nccl_facts import NcclFacts, cite_lines
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.known_bad import find_known_bad
from whystuck.diagnose.nccl_rule import NcclRule
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.evidence.finding import Confidence, Finding


class VersionKnownBad(NcclRule):
    """The version of NCCL in use has a known fault.

    ## What it means

    The release notes or the maintainers say that this version may hang, crash or corrupt data.
    Whether this job met that fault is another question.

    ## How it is found

    The version that NCCL prints, or that `whystuck check` finds in torch, is looked up in a small
    table with its sources.

    ## False alarms

    The fault needs hardware or options that the job does not use: the summary says which.

    ## What to do

    Upgrade, or use the way around that is given.
    """

    code = "N418"
    needs: ClassVar[tuple[str, ...]] = ("logs", "checks")
    name = "version-known-bad"
    remedies: ClassVar[tuple[str, ...]] = (
        "upgrade torch, or nvidia-nccl-cu12 alone, on all nodes",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what the lines of NCCL tell, and what a check of the node found."""
        yield from super().check(scene, policy)
        yield from tell_problems(self, scene)

    def look(self, facts: NcclFacts, scene: Scene) -> Iterator[Finding]:
        """Yield a finding for each known fault of a version in use."""
        del scene
        for version, events in sorted(facts.versions.items()):
            for row in find_known_bad(version):
                fixed = f"; {row.fixed} has it no more" if row.fixed else ""
                finding = self.make_finding(
                    f"NCCL {version} {row.trouble}{fixed}",
                    Confidence.POSSIBLE,
                    Blame(),
                    because=cite_lines(events[:1]),
                    details={"version": version, "fixed": row.fixed, "source": row.source},
                )
                yield replace(
                    finding, remedies=[*([row.around] if row.around else []), *finding.remedies]
                )
