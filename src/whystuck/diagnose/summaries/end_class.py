"""The class of an end: the few words by which people and platforms sort jobs that failed."""

from __future__ import annotations

from collections.abc import Sequence

from whystuck.diagnose.rulebook import DEFAULT, Rulebook
from whystuck.evidence.finding import Finding, Severity


def classify_end(findings: Sequence[Finding], book: Rulebook = DEFAULT) -> str:
    """Name the class of an end by its root cause.

    Args:
        findings: Those of a report, the root cause first.
        book: The rules that found them.

    Returns:
        ``process-lost``, ``computation-error``, ``hardware-error``, ``communication-timeout``,
        ``ended-outside`` or ``configuration``; empty for a job that did not end, or where the
        cause is not known.
    """
    blamed = [finding for finding in findings if finding.severity is not Severity.NOTE]
    return book.find_rule(blamed[0].code).end_class if blamed else ""
