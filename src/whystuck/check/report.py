"""From the results of checks to a report."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec.structs import replace

from whystuck.evidence.finding import Finding, Report, Severity, Verdict
from whystuck.evidence.model import Evidence, Incident
from whystuck.evidence.nodes.checks import CheckResult
from whystuck.pipeline import diagnose_evidence

_SENTENCES = {
    Verdict.HEALTHY: "hardware and network of this node pass: look at the code",
    Verdict.UNFIT: "something is wrong with this node: mend that before you look at the code",
    Verdict.INCONCLUSIVE: "not all checks were completed: this node is not cleared",
}


def make_report(results: Sequence[CheckResult], took_s: float, *, is_deep: bool = False) -> Report:
    """Judge a node by its checks; one that is incomplete is a gap, and the node is not healthy."""
    incident = Incident(kind="check", opened_ns=time.time_ns())
    report = diagnose_evidence(Evidence(incident=incident, checks=tuple(results)))
    nodes = sorted({result.node for result in results if result.node})
    context = report.context | {"nodes": nodes, "checks": len(results), "took_s": took_s}
    if is_deep:
        context["sentence"] = _SENTENCES[report.verdict]
    return replace(report, context=context)


def list_blocking(report: Report, blocking: Sequence[str], node: str = "") -> list[Finding]:
    """Return the findings that keep a job from starting on this node.

    Args:
        report: What was found.
        blocking: The codes that do.
        node: The name of this node: what blames others alone lets it start.
    """

    def is_own(name: str) -> bool:
        # Where nodes share a name, their ranks are behind it.
        return not node or name == node or name.startswith(f"{node} (")

    return [
        finding
        for finding in report.findings
        if finding.severity is Severity.ERROR
        and finding.code in blocking
        and (not finding.culprits.nodes or any(map(is_own, finding.culprits.nodes)))
    ]
