"""Stacks that people took while a job ran, with the steps that it made before and after."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Verdict

STACKS = [
    "$ py-spy dump --pid 812   # rank 1",
    'Thread 812 (active): "MainThread"',
    "    barrier (torch/distributed/distributed_c10d.py:3938)",
    "    after_epoch (det/hooks.py:55)",
    "    fit (det/trainer.py:190)",
    "$ py-spy dump --pid 811   # rank 0",
    'Thread 811 (active+gil): "MainThread"',
    "    _conv_forward (torch/nn/modules/conv.py:456)",
    "    evaluate (det/evaluator.py:33)",
    "    after_epoch (det/hooks.py:52)",
    "    fit (det/trainer.py:190)",
    "",
]
STEPS = {
    "steps": "step {} loss 0.5",
    "epochs": "Epoch {}: train loss 0.44",
    "short": "14:00:00 ep {} start",
    "ranks": "[rank0] iteration {} | lm loss: 3.31",
}


def write_steps(form: str, *numbers: int) -> list[str]:
    return [form.format(number) for number in numbers]


@pytest.mark.parametrize("form", STEPS.values(), ids=STEPS)
def test_job_that_made_steps_after_its_stacks_is_not_stuck(tmp_path: Path, form: str) -> None:
    report = say(tmp_path, *write_steps(form, 11, 12, 13), *STACKS, *write_steps(form, 14, 15))

    assert not report.findings
    assert report.verdict is Verdict.HEALTHY


def test_person_who_says_that_the_job_hangs_is_believed(tmp_path: Path) -> None:
    steps = [write_steps(STEPS["steps"], *numbers) for numbers in ((11, 12, 13), (14, 15))]
    said = say(tmp_path, "it hangs after a while. rank 0:", *steps[0], *STACKS, *steps[1])
    asked = say(tmp_path, "I think it hangs after each epoch??", *steps[0], *STACKS, *steps[1])

    assert said.verdict is not Verdict.HEALTHY
    assert asked.verdict is Verdict.HEALTHY


TIMEOUT = (
    "[rank1]:[E1 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
    "600012 milliseconds before timing out."
)
BELOW = {
    "nothing": [],
    "the same step": write_steps(STEPS["steps"], 13),
    "another log": write_steps(STEPS["steps"], 2, 3, 4, 5),
    "a complaint": [*write_steps(STEPS["steps"], 14, 15), "and then it hangs forever"],
    "a timeout": [
        *write_steps(STEPS["steps"], 14, 15),
        TIMEOUT,
    ],
    "an exception": [
        *write_steps(STEPS["steps"], 14, 15),
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "ValueError: no",
    ],
}


@pytest.mark.parametrize("below", BELOW.values(), ids=BELOW)
def test_other_lines_below_stacks_do_not_make_a_job_healthy(
    tmp_path: Path, below: list[str]
) -> None:
    report = say(tmp_path, *write_steps(STEPS["steps"], 11, 12, 13), *STACKS, *below)

    assert report.findings
    assert report.verdict is not Verdict.HEALTHY


def test_expert_parallel_sizes_are_no_steps(tmp_path: Path) -> None:
    sizes = ["ep 2 tp 4", "ep 3 tp 4", "ep 4 tp 4"]
    report = say(tmp_path, *sizes, *STACKS, "ep 5 tp 4")

    assert report.verdict is not Verdict.HEALTHY
