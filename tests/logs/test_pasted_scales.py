"""Scalers that leave out step after step, as they print it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report, Verdict

DEEPSPEED = (
    "[2024-03-19 23:51:{second:02},411] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] "
    "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {scale}, reducing to {lower}"
)
OLD_DEEPSPEED = (
    "[2022-03-19 23:51:{second:02},411] [INFO] [stage_1_and_2.py:1652:step] [deepspeed] fp16 "
    "dynamic loss scale overflow! Rank 0 Skipping step. Attempted loss scale: {scale}.0, reducing "
    "to {lower}.0"
)
APEX = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {lower}.0"
FAIRSEQ = (
    "2021-05-03 10:11:{second:02} | INFO | fairseq.trainer | NOTE: gradient overflow detected, "
    "ignoring gradient, setting loss scale to: {lower}.0"
)
COUNTED = (
    "[2024-03-19 23:51:10,456] [INFO] [logging.py:96:log_dist] [Rank 0] step={0}, skipped=21, "
    "lr=[9.93e-05], mom=[(0.9, 0.999)]"
)
LOSS = "{'loss': 7.8127, 'learning_rate': 9.93e-05, 'epoch': 0.03}"


def skip(form: str, scales: Sequence[int], *, gap_s: int = 2) -> list[str]:
    """Write the skips of steps in a row, with what a trainer prints between some of them."""
    lines = []
    for number, scale in enumerate(scales):
        lines.append(form.format(second=number * gap_s, scale=scale, lower=scale // 2))
        lines += [LOSS] if number % 2 else []
    return lines


FALLING = [4096 >> number for number in range(8)]


def judge(folder: Path, *lines: str) -> Report:
    return say(folder, "loss is flat since about step 310", *lines)


@pytest.mark.parametrize("form", [DEEPSPEED, OLD_DEEPSPEED])
@pytest.mark.parametrize("prefix", ["", "[default0]:", "node-1: "])
def test_scale_that_falls_with_each_step_is_told(tmp_path: Path, form: str, prefix: str) -> None:
    lines = [*skip(form, FALLING), COUNTED.format(330)]
    report = judge(tmp_path, *(f"{prefix}{line}" for line in lines))
    finding = first_of(report)

    assert (report.verdict, finding.code, finding.culprits.ranks) == (Verdict.DIVERGED, "V503", [])
    assert (finding.details["scale_from"], finding.details["scale_to"]) == (4096, 16)


@pytest.mark.parametrize("form", [APEX, FAIRSEQ])
def test_scale_below_one_is_told_without_a_count_of_steps(tmp_path: Path, form: str) -> None:
    lines = skip(form, FALLING)
    for second, part in ((16, 5), (18, 25), (20, 125)):
        lines.append(form.format(second=second, lower=0).replace("0.0", f"0.{part}"))

    assert first_of(judge(tmp_path, *lines)).code == "V503"


def test_very_many_skips_are_counted(tmp_path: Path) -> None:
    lines = skip(DEEPSPEED, [1 << power for power in range(28, 0, -1)])
    finding = first_of(judge(tmp_path, *lines, COUNTED.format(330)))

    assert (finding.code, finding.details["skipped"]) == ("V503", 28)


STEPS = [f"{{'loss': {7 - step}.1, 'epoch': 0.{step}}}" for step in range(1, 7)]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(skip(DEEPSPEED, FALLING), id="no count of steps"),
        pytest.param([*skip(DEEPSPEED, FALLING), COUNTED.format(30)], id="search of a new scaler"),
        pytest.param([*skip(DEEPSPEED, FALLING), COUNTED.format(330), *STEPS], id="it went on"),
        pytest.param([*skip(DEEPSPEED, FALLING[:4]), COUNTED.format(330)], id="a few"),
        pytest.param(
            [*skip(DEEPSPEED, [4096, 2048, 4096, 2048, 4096, 2048, 1024]), COUNTED.format(330)],
            id="it grows between",
        ),
        pytest.param(
            [*skip(DEEPSPEED, FALLING[:3]), *STEPS, *skip(DEEPSPEED, FALLING[3:6])],
            id="steps between",
        ),
        pytest.param(
            [
                *skip(DEEPSPEED, FALLING[:4]),
                *skip(DEEPSPEED.replace("23:51", "23:58"), FALLING[4:]),
                COUNTED.format(9330),
            ],
            id="minutes between",
        ),
        pytest.param([LOSS, COUNTED.format(330), *STEPS], id="skips long ago"),
    ],
)
def test_scaler_that_may_find_its_scale_is_not_told(tmp_path: Path, lines: list[str]) -> None:
    assert all(one.code != "V503" for one in judge(tmp_path, *lines).findings)


@pytest.mark.parametrize("count", [2, 5])
def test_scale_that_cannot_be_lowered_any_more(tmp_path: Path, count: int) -> None:
    line = (
        "[2025-04-22 12:02:2{0},378] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] "
        "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {1}, reducing to {2}"
    )
    floor = [line.format(number, 1, 1) for number in range(count)]
    finding = first_of(say(tmp_path, line.format(0, 2, 1), "...", *floor))
    assert (finding.code, finding.culprits.ranks) == ("V503", [])
    assert "the least that it may be" in finding.summary

    # One step of that kind may be a spike.
    report = say(tmp_path, line.format(0, 2, 1), "...", "more steps", "more", "more", floor[0])
    assert not [item for item in report.findings if item.code == "V503"]
