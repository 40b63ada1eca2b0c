"""Dumps of real NCCL jobs with known faults, from the tests of nvidia-resiliency-ext."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whystuck.evidence.ranks import format_ranks
from whystuck.pipeline import diagnose_paths, read_evidence

VARIABLE = "WHYSTUCK_TEST_DATA"
TRUTH = {"gpu_error_1st": ("H123", [12, 14]), "lock_gil_2nd": ("H101", [10, 15])}


def find_data() -> Path:
    named = os.environ.get(VARIABLE)
    folder = Path(named) if named else Path(__file__).parents[3] / "shared" / "data"
    if named:
        assert folder.is_dir(), f"{VARIABLE} names {folder}, which is not there"
    elif not (folder / "nvrx_fr").is_dir():
        pytest.skip(f"{VARIABLE} is not set")
    return folder / "nvrx_fr"


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_real_dumps_are_read_whole_and_exactly_the_faulty_ranks_are_named(name: str) -> None:
    folder = find_data() / name
    evidence = read_evidence(folder)
    report = diagnose_paths([folder])

    assert len(evidence.collectives.artifacts) == 16
    assert evidence.gaps == ()
    assert [(item.code, item.culprits.ranks) for item in report.findings] == [TRUTH[name]]
    everybody = len(evidence.collectives.artifacts)
    assert format_ranks(set(range(everybody)) - set(TRUTH[name][1])) == (
        report.findings[0].victims.ranks
    )
