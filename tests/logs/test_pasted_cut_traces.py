"""Tracebacks whose first line is not shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

FRAMES = [
    '  File "/w/train.py", line 88, in main',
    "    loss = step(batch)",
    '  File "/w/steps.py", line 31, in step',
    "    ids = batch['ids'].view(n, -1)",
    "          ^^^^^^^^^^^^^^^^^^^^^^^^",
]
ERROR = "RuntimeError: shape '[7, -1]' is invalid for input of size 4096"
OTHERS = [f"[rank{rank}]: step 40 loss 2.1" for rank in range(4)]


@pytest.mark.parametrize("kept", [1, 2, 5])
@pytest.mark.parametrize("prefix", ["[rank2]: ", "[rank2] ", "2: "])
def test_last_frames_of_a_traceback(tmp_path: Path, kept: int, prefix: str) -> None:
    steps = [f"{prefix.replace('2', str(rank))}step 40 loss 2.1" for rank in range(4)]
    lines = [prefix + line for line in (*FRAMES[{1: 2, 2: 2, 5: 0}[kept] :], ERROR)]
    finding = first_of(say(tmp_path, *steps, *lines))

    assert (finding.code, finding.culprits.ranks) == ("C204", [2])
    assert (finding.where[0].file, finding.where[0].line) == ("/w/steps.py", 31)


def test_frames_between_lines_of_other_ranks(tmp_path: Path) -> None:
    lines = [f"[rank2]: {line}" for line in (*FRAMES, ERROR)]
    mixed = [one for pair in zip(lines, OTHERS * 2, strict=False) for one in pair]
    finding = first_of(say(tmp_path, *OTHERS, *mixed))

    assert (finding.code, finding.culprits.ranks) == ("C204", [2])


def test_whole_traceback_is_read_once(tmp_path: Path) -> None:
    lines = ["Traceback (most recent call last):", *FRAMES, ERROR]
    report = say(tmp_path, *OTHERS, *(f"[rank2]: {line}" for line in lines))

    assert [one.code for one in report.findings] == ["C204"]
    assert report.logs is None or report.logs.records == 1


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*FRAMES, ERROR.replace("RuntimeError", "note")], id="no exception"),
        pytest.param(
            ['  File "/w/a.py", line 3 in run', '  File "/w/a.py", line 9 in <module>', ERROR[:13]],
            id="faulthandler",
        ),
    ],
)
def test_what_is_no_traceback(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *OTHERS, *(f"[rank2]: {line}" for line in lines))

    assert all(one.code != "C204" for one in report.findings)
