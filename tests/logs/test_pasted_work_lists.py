"""The work of all ranks and its time as two lists of each step: who has more takes longer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Report, Verdict

WORK = [
    [4100, 3960, 8040, 3910],
    [7900, 4020, 3980, 4150],
    [4000, 4110, 3890, 8100],
    [3920, 7850, 4090, 4010],
]
FORMS = [
    "step {step} tokens {work} | ms {times}",
    "it={step} tokens=[{work}] ms=[{times}]",
    "[12:04:11] step {step}: seqs: {work}  fwd_ms: {times}",
    "step {step} n_samples [{work}] compute (ms) [{times}]",
    "step {step} ms {times} ; tokens {work}",
]


def show(
    form: str, work: Sequence[Sequence[int]] = WORK, rate: float = 0.1, mark: str = " "
) -> list[str]:
    return [
        form.format(
            step=410 + at,
            work=mark.join(map(str, row)),
            times=mark.join(f"{10 + rate * one:.0f}" for one in row),
        )
        for at, row in enumerate(work)
    ]


def codes_of(report: Report) -> list[str]:
    return [one.code for one in report.findings if one.code[0] != "E"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mark", [" ", ", "])
def test_time_that_follows_the_work_is_imbalance(tmp_path: Path, form: str, mark: str) -> None:
    report = say(tmp_path, "times before the allreduce", *show(form, mark=mark))

    assert codes_of(report) == ["S308"]
    assert all(not one.culprits.ranks for one in report.findings)


@pytest.mark.parametrize(
    ("below", "verdict"),
    [
        ("", Verdict.SLOW),
        ("it is stuck since step 413, what is wrong?", Verdict.INCONCLUSIVE),
        (
            "[rank2]: RuntimeError: CUDA error: an illegal memory access was encountered",
            Verdict.CRASHED,
        ),
    ],
    ids=["pace", "stopped", "failed"],
)
def test_verdict_is_slow_where_nothing_tells_of_an_end(
    tmp_path: Path, below: str, verdict: Verdict
) -> None:
    assert say(tmp_path, *show(FORMS[0]), below).verdict is verdict


def test_seconds_are_read(tmp_path: Path) -> None:
    lines = [line.replace("ms", "s") for line in show(FORMS[0], rate=0.01)]

    assert codes_of(say(tmp_path, *lines)) == ["S308"]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(show(FORMS[0], [[4000, 4010, 3990, 4005]] * 4), id="alike"),
        pytest.param(show(FORMS[0], [row[1:3] for row in WORK[:2]]), id="too few"),
        pytest.param(show(f"micro batches, {FORMS[0]}"), id="of one rank"),
        pytest.param([f"step {at} tokens 1 2 3 | ms 4 5" for at in range(9)], id="not as many"),
        pytest.param([line.replace("tokens", "loss") for line in show(FORMS[0])], id="no work"),
    ],
)
def test_lists_that_tell_nothing(tmp_path: Path, lines: list[str]) -> None:
    assert codes_of(say(tmp_path, *lines)) == []


def test_rank_that_is_slow_for_its_work_is_no_imbalance(tmp_path: Path) -> None:
    lines = [
        f"step {at} tokens {' '.join(map(str, row))} | ms "
        + " ".join(f"{one * (0.2 if rank == 1 else 0.1):.0f}" for rank, one in enumerate(row))
        for at, row in enumerate(WORK)
    ]

    assert codes_of(say(tmp_path, *lines)) == []
