"""The class of an end follows from the rule of the root cause."""

from __future__ import annotations

import pytest
from tests.logs.cases import Case, all_cases

from whystuck.diagnose.summaries.end_class import classify_end
from whystuck.evidence.finding import Confidence, Finding, Severity


def find(code: str, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(code=code, name="x", severity=severity, confidence=Confidence.LIKELY, summary="")


@pytest.mark.parametrize(
    "case", [one for one in all_cases() if one.truth.code], ids=lambda one: str(one.folder.name)
)
def test_class_is_that_of_the_corpus(case: Case) -> None:
    assert classify_end([find(case.truth.code or "")]) == case.truth.kind


def test_notes_do_not_end_a_job() -> None:
    assert classify_end([find("C208", Severity.NOTE)]) == ""
    assert classify_end([find("C208", Severity.NOTE), find("C204")]) == "computation-error"
    assert classify_end([]) == classify_end([find("H102")]) == ""
