"""Which cost comes first: a fault of one rank, unless what all ranks share costs far more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.engine import diagnose
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Rule
from whystuck.evidence.finding import Confidence, Culprits, Finding, Severity
from whystuck.evidence.model import Evidence


@pytest.mark.parametrize(("fault", "first"), [(0.31, "P504"), (0.02, "P503")])
def test_a_late_rank_comes_before_a_cost_of_all_that_is_not_far_larger(
    fault: float, first: str
) -> None:
    class Costs(Rule):
        code, name = "P500", "costs"

        def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
            for code, share, ranks in (("P503", 0.36, []), ("P504", fault, [1])):
                yield Finding(
                    code=code,
                    name=code,
                    severity=Severity.WARNING,
                    confidence=Confidence.LIKELY,
                    summary=code,
                    culprits=Culprits(ranks=ranks),
                    measures={"share_of_step": share},
                )

    report = diagnose(Evidence(), rules=[Costs])

    assert report.findings[0].code == first
