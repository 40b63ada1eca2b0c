"""Lines of steps with the time of a save among their figures, beside ranks that gave up."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

GAVE_UP = (
    "[rank{0}]:[E602 11:17:52.400612945 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=17, OpType=BROADCAST, NumelIn=9, NumelOut=9, "
    "Timeout(ms)={1}) ran for {1} milliseconds before timing out."
)
FORMS = [
    "step {step} | loss 2.911 | 31.8 s/it | ckpt/gather_state {took} s",
    "{step}: loss=2.9, checkpoint/save_optimizer={took}s, lr=1e-4",
    "[trainer] it {step} save/state_dict: {took} sec",
]


def steps(form: str, *times: float) -> list[str]:
    return [form.format(step=500 * at, took=took) for at, took in enumerate(times, 1)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("prefix", ["", "> "])
def test_save_that_takes_nearly_the_limit_is_what_ranks_waited_for(
    tmp_path: Path, form: str, prefix: str
) -> None:
    lines = [prefix + line for line in steps(form, 84.0, 87.5)]
    report = say(tmp_path, *lines, GAVE_UP.format(1, 90000), GAVE_UP.format(3, 90000))

    assert [one.code for one in report.findings] == ["H118"]
    assert report.findings[0].victims.ranks == "1,3"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("limit", [600_000, 120_000])
def test_save_that_is_far_from_the_limit_explains_nothing(
    tmp_path: Path, form: str, limit: int
) -> None:
    lines = steps(form, 84.0, 87.5)

    assert first_of(say(tmp_path, *lines, GAVE_UP.format(1, limit))).code == "C211"


@pytest.mark.parametrize(
    "line",
    [
        "loading checkpoint/step_500 88 s after the start",
        "step 500 | data/load 88.1 s",
        "files in ckpt/step_500: 88",
    ],
)
def test_other_times_explain_nothing(tmp_path: Path, line: str) -> None:
    assert first_of(say(tmp_path, line, GAVE_UP.format(1, 90000))).code == "C211"


@pytest.mark.parametrize("form", FORMS)
def test_job_that_goes_on_is_well(tmp_path: Path, form: str) -> None:
    assert say(tmp_path, *steps(form, 84.0, 87.5, 88.0)).findings == []
