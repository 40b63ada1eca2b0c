"""N417 versions-differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.check_rule import tell_problems
from whystuck.diagnose.context.nccl_facts import NcclFacts, cite_lines
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.known_bad import parse_version
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.nccl_rule import NcclRule
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.evidence.finding import Confidence, Finding, Severity


class VersionsDiffer(NcclRule):
    """Ranks of one job use different versions of NCCL.

    ## What it means

    Releases of NCCL do not talk to each other, or do so in another way than was tested. Mostly an
    image is not the same on all nodes, or a library path comes first on one of them.

    ## How it is found

    The version that NCCL prints when it starts, and the one in errors of torch; `whystuck check`
    compares the driver with what torch was built for. `details.versions`
    maps each version to the hosts, logs or ranks that tell it. Where NCCL refused to start
    (`Mismatched NCCL version detected`), it is an error. Where the messages by which NCCL finds
    its peers do not have the size that the other side expects, that is why they were lost.

    ## False alarms

    Logs of two jobs in one folder.

    ## What to do

    Use one image on all nodes.
    """

    code = codes.VERSIONS_DIFFER
    needs: ClassVar[tuple[str, ...]] = ("logs", "checks")
    name = "versions-differ"
    explains = (codes.PEER_LOST, codes.RENDEZVOUS_FAILED)
    explains_from = Severity.ERROR
    remedies: ClassVar[tuple[str, ...]] = (
        'python -c "import torch; print(torch.cuda.nccl.version())"   # on every node',
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what the lines of NCCL tell, and what a check of the node found."""
        refused = [tell_case(self, case) for case in scene.story.of(self.code)]
        yield from (replace(finding, severity=Severity.ERROR) for finding in refused)
        if not refused:
            yield from super().check(scene, policy)
        yield from tell_problems(self, scene)

    def look(self, facts: NcclFacts, scene: Scene) -> Iterator[Finding]:
        """Yield a finding where more than one version is told, or may be behind a failed start."""
        if any(case.code == codes.CONFIG_ERROR for case in scene.story.roots):
            return
        if len(facts.versions) < 2:  # noqa: PLR2004 - two differ
            yield from self._look_at_sizes(facts)
            return
        versions = sorted(facts.versions, key=parse_version)
        places = {version: facts.find_places(facts.versions[version]) for version in versions}
        least = min(versions, key=lambda version: len(places[version]))
        is_odd = sum(len(places[version]) == len(places[least]) for version in versions) == 1
        tellers = facts.find_tellers(facts.versions[least]) if is_odd else set()
        nodes = sorted({teller.node for teller in tellers} - {""})
        because = [cite for version in versions for cite in cite_lines(facts.versions[version][:1])]
        text = f"ranks use different versions of NCCL: {' and '.join(versions)}"
        finding = self.make_finding(
            text + "; their set-up messages do not fit each other" * bool(facts.odd_sizes),
            Confidence.LIKELY,
            Blame(nodes=nodes),
            because=[*because, *cite_lines(facts.odd_sizes)],
            details={"versions": {version: sorted(places[version]) for version in versions}},
        )
        yield replace(finding, severity=Severity.ERROR) if facts.odd_sizes else finding

    def _look_at_sizes(self, facts: NcclFacts) -> Iterator[Finding]:
        """Yield that releases may differ, as messages of a set-up have other sizes."""
        if facts.odd_sizes:
            yield self.make_finding(
                "a set-up message of NCCL has another size than this release sends: the sender "
                "may use another version of NCCL, or be of another job",
                Confidence.POSSIBLE,
                Blame(),
                because=cite_lines(facts.odd_sizes),
                details={"versions": {version: [] for version in facts.versions}},
            )
