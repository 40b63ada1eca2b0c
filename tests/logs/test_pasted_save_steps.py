"""Loops that print the time of each step, and that a checkpoint is saved, but not for how long."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

FORMS = [
    "iter {0}: loss 2.8790, time {2:.2f}ms, mfu 41.03%",
    "step {0} | loss 2.88 | {1:.2f} s/step",
    "{{'step': {0}, 'loss': 2.88, 'step_time': {1:.3f}}}",
]
SAVES = [
    "saving checkpoint to /weka/run3",
    "Saving model checkpoint to /weka/run3/checkpoint-2000",
    "INFO saved ckpt to /weka/run3/s2000.pt",
]
ALONE = [
    "only rank 0 saves, the others sit there",
    "only the main process writes",
    "rank 0 alone saves it",
]
WELL, LONG = 0.44, 171.0


def loop(
    form: str, save: str, long: float = LONG, period: int = 4, at: tuple[int, ...] = (4, 8)
) -> list[str]:
    lines = []
    for step in range(1, 10):
        lines += [save] if step in at else []
        seconds = long if step in (period, 2 * period) else WELL
        lines.append(form.format(1996 + step, seconds, 1000 * seconds))
    return lines


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("alone", [*ALONE, ""])
def test_steps_in_which_a_checkpoint_is_saved(
    tmp_path: Path, form: str, save: str, alone: str
) -> None:
    findings = say(tmp_path, *loop(form, save), alone).findings
    told = [(one.code, one.severity.value, one.culprits.ranks) for one in findings]

    assert told == [("S305" if alone else "H118", "note", [])]
    assert "171 s" in findings[0].summary


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(loop(FORMS[0], SAVES[0], long=WELL), id="cheap"),
        pytest.param(loop(FORMS[0], SAVES[0], long=3.1), id="short"),
        pytest.param(loop(FORMS[0], SAVES[0], at=(2, 6)), id="other steps"),
        pytest.param(loop(FORMS[0], SAVES[0], at=(4,)), id="slow without"),
        pytest.param(loop(FORMS[0], SAVES[0], at=(2, 4, 8)), id="save that is fast"),
        pytest.param(loop(FORMS[0], "saving a checkpoint every 500 steps"), id="plan"),
        pytest.param(loop(FORMS[0], "eval loss 2.11"), id="evaluation"),
        pytest.param([FORMS[0].format(7, WELL, 440.0)] * 2 + [SAVES[0]], id="one step twice"),
        pytest.param([FORMS[0].format(s, WELL, 440.0) for s in (7, 8)] + [SAVES[0]], id="even"),
    ],
)
def test_slow_steps_of_other_things(tmp_path: Path, lines: list[str]) -> None:
    findings = say(tmp_path, *lines, ALONE[0]).findings

    assert not {"S305", "H118"} & {one.code for one in findings}
