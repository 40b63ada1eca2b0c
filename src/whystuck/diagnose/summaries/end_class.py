"""The class of an end: the few words by which people and platforms sort jobs that failed."""

from __future__ import annotations

from collections.abc import Sequence

from whystuck.evidence.finding import Finding, Severity

_CLASSES = {
    "process-lost": ("C201", "C202", "C209"),
    "computation-error": ("C203", "C204", "C205", "C206", "C212", "C213"),
    "hardware-error": ("C208",),
    "communication-timeout": ("C211",),
    "ended-outside": ("C207",),
    "configuration": ("C210", "H121", "H126"),
}
_CLASS_BY_CODE = {code: name for name, codes in _CLASSES.items() for code in codes}


def classify_end(findings: Sequence[Finding]) -> str:
    """Name the class of an end by its root cause.

    Args:
        findings: Those of a report, the root cause first.

    Returns:
        ``process-lost``, ``computation-error``, ``hardware-error``, ``communication-timeout``,
        ``ended-outside`` or ``configuration``; empty for a job that did not end, or where the
        cause is not known.
    """
    blamed = [finding for finding in findings if finding.severity is not Severity.NOTE]
    return _CLASS_BY_CODE.get(blamed[0].code, "") if blamed else ""
