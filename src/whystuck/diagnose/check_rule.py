"""The kind of rule that tells what a check of a node found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding, Severity
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

CHECK = "check"  # the key of details that names the check


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
    told = set[tuple[str, tuple[str, ...]]]()
    for result in scene.evidence.checks:
        for problem in result.problems:
            if problem.code != rule.code:
                continue
            if problem.nodes is not None:
                # Each of the nodes that were compared tells the same.
                if (problem.text, problem.nodes) in told:
                    continue
                told.add((problem.text, problem.nodes))
            yield _make_finding(rule, result, problem)


def is_told_by_check(finding: Finding) -> bool:
    """Return whether a check found it: it is true of the node, and explains no end of a job."""
    return finding.code[0] == codes.NODE and CHECK in finding.details


def _make_finding(rule: Rule, result: CheckResult, problem: CheckProblem) -> Finding:
    details = {CHECK: result.name, "subject": problem.subject} | problem.details
    nodes = problem.nodes if problem.nodes is not None else (result.node,) if result.node else ()
    # In evidence, each finding leads to what it rests on.
    facts = (f"check {result.title}: {result.outcome.value}",) if result.artifact else ()
    finding = rule.make_finding(
        problem.text,
        Confidence(problem.confidence),
        Blame(nodes=nodes),
        because=[Citation(text, result.artifact) for text in problem.because or facts],
        details={name: value for name, value in details.items() if value != ""},
        measures=dict(problem.measures),
    )
    remedies = list(problem.remedies) or finding.remedies
    return replace(finding, severity=Severity(problem.severity), remedies=remedies)
