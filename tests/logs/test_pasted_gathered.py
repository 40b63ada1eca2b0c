"""Shapes that accelerate compares before it gathers tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

RAISED = (
    "accelerate.utils.operations.DistributedOperationException: Cannot apply desired operation due "
    "to shape mismatches. All shapes across devices must be valid."
)
HEAD = [
    "Traceback (most recent call last):",
    '  File "/w/eval.py", line 96, in main',
    "    preds = accelerator.gather(preds)",
    '  File "/opt/v/lib/python3.11/site-packages/accelerate/utils/operations.py", line 370, in wr',
    "    raise DistributedOperationException(",
]


def shapes(*told: str) -> list[str]:
    rows = [f"  - Process {rank}: {text}" for rank, text in enumerate(told)]
    return ["", "Operation: `accelerate.utils.operations.gather`", "Input shapes:", *rows]


UNEVEN = shapes("[4, 64]", "[4, 59]", "[4, 64]")


@pytest.mark.parametrize("head", [[], HEAD[3:], HEAD], ids=["none", "cut", "whole"])
@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "> "])
def test_processes_that_give_other_shapes_are_told(
    tmp_path: Path, head: list[str], prefix: str
) -> None:
    lines = [f"{prefix}{line}" for line in (*head, RAISED, *UNEVEN)]
    report = say(tmp_path, *lines)
    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("H106", [])
    assert finding.details["shapes"] == {"0": [4, 64], "1": [4, 59], "2": [4, 64]}
    assert len([one for one in report.findings if one.severity == "error"]) == 1


def test_all_ranks_that_raise_it_are_one_finding(tmp_path: Path) -> None:
    lines = [f"[rank{rank}]: {line}" for rank in range(3) for line in (*HEAD, RAISED, *UNEVEN)]
    report = say(tmp_path, *lines)

    assert [one.code for one in report.findings if one.severity == "error"] == ["H106"]
    assert not report.findings[0].culprits.ranks


def test_shapes_of_several_tensors_are_shown(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, RAISED, *shapes("[[4, 64], [4]]", "[[4, 59], [4]]")))

    assert finding.code == "H106"
    assert "process 1: [[4, 59], [4]]" in finding.summary


@pytest.mark.parametrize(
    "lines", [UNEVEN, ["DistributedOperationException: other", *UNEVEN]], ids=["debug", "other"]
)
def test_shapes_that_are_printed_are_no_finding(tmp_path: Path, lines: list[str]) -> None:
    assert all(one.code != "H106" for one in say(tmp_path, *lines).findings)
