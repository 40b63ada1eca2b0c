"""Logs of jobs that met trouble, got over it, and made steps after that."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Verdict

OOM = "CUDA out of memory. Tried to allocate 7.83 GiB. GPU 0 has a total capacity of 39.39 GiB"
CAUGHT = f"WARNING train: bs=32 failed: {OOM}"
STEPS = {
    "Trainer of transformers": [f"{{'loss': 1.{9 - k}, 'epoch': 0.{k}}}" for k in range(1, 8)],
    "Megatron": [
        f" iteration {k}0/ 500 | consumed samples: 9 | lm loss: 2.{9 - k}E+00 |"
        for k in range(1, 8)
    ],
    "bars": [
        f"{k:3}%|#         | {k}7/1616 [14:31<1:16:40,  3.39s/it, loss=1.{k}]" for k in range(1, 8)
    ],
    "words": [f"[rank1]: step {k} loss 2.{9 - k}1 lr 2.9e-04" for k in range(1, 8)],
    "ImageNet": [
        f"Epoch: [0][ {k}10/5005]\tTime 0.412 (0.420)\tData 0.003 (0.003)\tLoss 6.{9 - k}e+00 (6.9)"
        for k in range(1, 8)
    ],
}


@pytest.mark.parametrize("tool", STEPS)
def test_steps_after_trouble_are_told_and_call_no_job_well(tmp_path: Path, tool: str) -> None:
    """It may hang ever since."""
    report = say(tmp_path, CAUGHT, *STEPS[tool])

    assert (report.verdict, report.findings) == (Verdict.INCONCLUSIVE, [])
    assert "after row 1 of train.log" in report.context["sentence"]


def test_prefixes_of_pods_hide_no_steps(tmp_path: Path) -> None:
    lines = [f"trainer-0 | {line}" for line in (CAUGHT, *STEPS["Trainer of transformers"])]

    assert "after row 1 of train.log" in say(tmp_path, *lines).context["sentence"]


@pytest.mark.parametrize(
    "lines",
    [
        STEPS["words"],
        [CAUGHT, *[STEPS["words"][0]] * 8],
        [CAUGHT, *(f"[rank{k}]: step 7 loss 2.{k}1" for k in range(8))],
        [*STEPS["words"][:5], CAUGHT, *STEPS["words"][5:]],
        ["it is stuck since then, any idea?", CAUGHT, *STEPS["words"]],
        [CAUGHT, *STEPS["words"], "after that it hangs, GPUs at 100 %"],
        [CAUGHT, *STEPS["words"], "no output since 20 minutes"],
        ["why is it so slow with 8 gpus?", CAUGHT, *STEPS["words"]],
    ],
    ids=[
        "no trouble",
        "one step again and again",
        "one step of all ranks",
        "few steps",
        "stuck",
        "hangs",
        "silent",
        "slow",
    ],
)
def test_steps_that_tell_nothing_of_trouble_are_not_told(tmp_path: Path, lines: list[str]) -> None:
    assert "sentence" not in say(tmp_path, *lines).context


@pytest.mark.parametrize(
    "end",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB.",
        (
            "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
            "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 "
            "milliseconds"
        ),
        "srun: error: n1: task 3: Killed",
    ],
)
def test_trouble_behind_the_steps_is_told(tmp_path: Path, end: str) -> None:
    assert say(tmp_path, CAUGHT, *STEPS["words"], end).verdict is not Verdict.HEALTHY
