"""Dumps of real NCCL jobs with known faults, from the tests of nvidia-resiliency-ext."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whystuck.pipeline import diagnose_paths, read_evidence

VARIABLE = "WHYSTUCK_TEST_DATA"
TRUTH = {"gpu_error_1st": {12, 14}, "lock_gil_2nd": {10, 15}}


def find_data() -> Path:
    named = os.environ.get(VARIABLE)
    folder = Path(named) if named else Path(__file__).parents[3] / "shared" / "data"
    if named:
        assert folder.is_dir(), f"{VARIABLE} names {folder}, which is not there"
    elif not (folder / "nvrx_fr").is_dir():
        pytest.skip(f"{VARIABLE} is not set")
    return folder / "nvrx_fr"


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_real_dumps_are_read_whole_and_no_innocent_rank_is_named(name: str) -> None:
    folder = find_data() / name
    evidence = read_evidence(folder)
    report = diagnose_paths([folder])

    assert len(evidence.collectives.artifacts) == 16
    assert evidence.gaps == ()
    assert {rank for item in report.findings for rank in item.culprits.ranks} <= TRUTH[name]
