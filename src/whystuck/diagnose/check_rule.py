"""The kind of rule that tells what a check of a node found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec.structs import replace

from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding, Severity
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult


class CheckRule(Rule):
    """A rule about a node: the check measures and compares, the rule has the page."""

    severity = Severity.WARNING
    needs: ClassVar[tuple[str, ...]] = ("checks",)

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding for each problem of this code."""
        del policy
        yield from tell_problems(self, scene)


def tell_problems(rule: Rule, scene: Scene) -> Iterator[Finding]:
    """Yield the problems of a rule's code that checks found."""
    for result in scene.evidence.checks:
        for problem in result.problems:
            if problem.code == rule.code:
                yield _make_finding(rule, result, problem)


def _make_finding(rule: Rule, result: CheckResult, problem: CheckProblem) -> Finding:
    details = {"check": result.name, "subject": problem.subject, **problem.details}
    finding = rule.make_finding(
        problem.text,
        Confidence(problem.confidence),
        Blame(nodes=[result.node] if result.node else []),
        because=[Citation(text) for text in problem.because],
        details={name: value for name, value in details.items() if value != ""},
        measures=dict(problem.measures),
    )
    remedies = list(problem.remedies) or finding.remedies
    return replace(finding, severity=Severity(problem.severity), remedies=remedies)
