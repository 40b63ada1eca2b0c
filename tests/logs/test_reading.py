"""Every line that matters in the corpus is read: as a known line, an exception, an end, a stack."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.cases import Case, Citation, Truth, all_cases
from tests.logs.pad import Size, pad_case

from whystuck.evidence.model import Evidence
from whystuck.pipeline import read_evidence

CASES = all_cases()
NAMES = [case.name for case in CASES]
# Machines write these: no rank does.
MACHINES = {"kernel", "events", "scheduler", "service"}


def find_readers(evidence: Evidence, cite: Citation) -> list[tuple[str, int, str]]:
    """Return what was read at a line: kind, rank and node."""
    name, line = cite.file, cite.line
    found = [
        (f"event {item.signature}", item.rank, item.node)
        for item in evidence.logs.events
        if item.artifact == name and item.row == line
    ]
    found += [
        (f"exception {item.type}", item.rank, item.node)
        for item in evidence.exceptions
        if item.artifact == name and item.row <= line <= max(item.row, item.last_row)
    ]
    found += [
        ("exit", item.rank, item.node)
        for item in evidence.exits
        if item.artifact == name and item.row == line
    ]
    found += [
        ("fatal", item.rank, item.node)
        for item in evidence.fatals
        if item.artifact == name and item.row <= line <= item.last_row
    ]
    return found


def find_misses(evidence: Evidence, truth: Truth) -> list[str]:
    misses = []
    for cite in truth.cited("cause"):
        found = find_readers(evidence, cite)
        if not found:
            misses.append(f"{cite.at}: not found ({cite.has})")
    return misses


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_lines_that_are_a_cause_are_read(case: Case) -> None:
    evidence = read_evidence(case.folder)

    assert find_misses(evidence, case.truth) == []


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_lines_that_are_a_cause_are_read_in_padded_logs(case: Case, tmp_path: Path) -> None:
    padded = pad_case(case, Size(64, seed=3, interleave=True, wrap="k8s", colour=True))
    assert padded.truth is not None

    evidence = read_evidence(padded.write(tmp_path / "logs"))

    assert find_misses(evidence, padded.truth) == []
