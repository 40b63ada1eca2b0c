"""Logs of jobs that go on: steps at one pace until somebody looked at the clock."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

ALARMS = [
    "is my job hung?? printed this and then nothing for 5 min",
    "W1124 14:04:02.114000 88190 torch/_dynamo/convert_frame.py:1016] [0/8] torch._dynamo",
    "AUTOTUNE mm(16384x8192, 8192x28672)",
]
STEP = "2026-11-24 14:{0:02}:{1:02} | step {2} | loss 11.{2} | 2.88 s"
STEADY = [(9, 31), (9, 34), (9, 37), (9, 40)]


def steps(times: list[tuple[int, int]]) -> list[str]:
    return [STEP.format(*time, number) for number, time in enumerate(times, 1)]


def test_steps_right_until_somebody_looked_are_those_of_a_healthy_job(tmp_path: Path) -> None:
    report = say(tmp_path, *ALARMS, *steps(STEADY), "$ date", "Tue Nov 24 14:09:41 UTC 2026")

    assert (report.verdict, report.findings) == ("healthy", [])


@pytest.mark.parametrize(
    ("times", "below"),
    [
        pytest.param(STEADY, [], id="nobody looked"),
        pytest.param(STEADY, ["$ date", "Tue Nov 24 14:19:41 UTC 2026"], id="it stands since"),
        pytest.param(STEADY, ["Tue Nov 24 15:09:41 CET 2026"], id="another zone"),
        pytest.param(STEADY[1:], ["Tue Nov 24 14:09:41 UTC 2026"], id="few steps"),
        pytest.param(
            [(1, 0), (1, 3), (9, 37), (9, 40)], ["Tue Nov 24 14:09:41 UTC 2026"], id="uneven"
        ),
        pytest.param(
            STEADY, ["Tue Nov 24 14:09:41 UTC 2026", "RuntimeError: NCCL error"], id="it failed"
        ),
    ],
)
def test_steps_that_may_be_the_last_ones_are_no_sign_of_health(
    tmp_path: Path, times: list[tuple[int, int]], below: list[str]
) -> None:
    assert say(tmp_path, *ALARMS, *steps(times), *below).verdict != "healthy"
