"""The pace of two runs of one job, side by side in one paste."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

MEGATRON = (
    "{run}  iteration {step:>8}/   10000 | elapsed time per iteration (ms): {ms:.1f} | global "
    "batch size:   256 |"
)
TITAN = "{run} step: {step}  loss:  7.1  step_time_ms: {ms:.1f}"
DIFF = ["- flash-attn 2.4.2", "+ WARNING: flash-attn not found, using unfused attention"]
RUNS = [
    ("24.03:", "24.07:"),
    ("old:", "new:"),
    ("[before]:", "[after]:"),
    ("torch 2.3.1 |", "torch 2.4.0 |"),
    ("run A:", "run B:"),
]


def show(form: str, runs: tuple[str, str], times: tuple[float, float], steps: int = 1) -> list[str]:
    return [
        form.format(run=run, step=200 + 10 * step, ms=ms + step)
        for run, ms in zip(runs, times, strict=True)
        for step in range(steps)
    ]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("form", [MEGATRON, TITAN])
def test_run_whose_steps_take_longer_is_told(
    tmp_path: Path, form: str, runs: tuple[str, str], steps: int
) -> None:
    finding = first_of(say(tmp_path, *show(form, runs, (2800, 3900), steps), *DIFF))

    assert finding.code == "P509"
    assert "flash-attn not found" in finding.summary
    assert finding.details["runs"][0] in runs[0]


@pytest.mark.parametrize(
    "lines",
    [
        show(MEGATRON, ("24.03:", "24.07:"), (2800, 2850)),
        show(MEGATRON, ("[rank0]:", "[rank1]:"), (2800, 3900)),
        show(MEGATRON, ("node-1:", "node-2:"), (2800, 3900)),
        show(MEGATRON, ("0:", "1:"), (2800, 3900)),
        show(MEGATRON, ("24.03:", "24.03:"), (2800, 3900)),
        [*show(MEGATRON, RUNS[0], (2800, 3900)), MEGATRON.format(run="24.11:", step=200, ms=9.0)],
        [
            MEGATRON.format(run="old:", step=1, ms=3900),
            MEGATRON.format(run="new:", step=90, ms=900),
        ],
    ],
    ids=["alike", "ranks", "hosts", "numbers", "one", "three", "other steps"],
)
def test_lines_that_are_no_two_runs_tell_nothing(tmp_path: Path, lines: list[str]) -> None:
    assert [one for one in say(tmp_path, *lines).findings if one.code == "P509"] == []
