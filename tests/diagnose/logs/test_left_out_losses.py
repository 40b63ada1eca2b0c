"""A part of a loss that a job leaves out by itself is no loss that is NaN."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.jobs import tell

from whystuck.diagnose import codes


def _says_not_finite(tmp_path: Path, text: str) -> bool:
    lines = "".join(f"[rank1]: step {step}: {text}\n" for step in range(4))
    report = tell(tmp_path, {"train.log": lines})
    return any(one.code == codes.NOT_FINITE for one in report.findings)


@pytest.mark.parametrize(
    "text",
    [
        "UserWarning: loss is NaN in bucket 3, ignored",
        "loss is nan for 2 samples (masked)",
        "handled: nan loss in the auxiliary head",
    ],
)
def test_what_the_job_leaves_out_is_not_told(tmp_path: Path, text: str) -> None:
    assert not _says_not_finite(tmp_path, text)


@pytest.mark.parametrize("text", ["loss is NaN", "loss: nan", "loss is nan, lr 1e-4"])
def test_a_loss_that_is_nan_is_told(tmp_path: Path, text: str) -> None:
    assert _says_not_finite(tmp_path, text)
