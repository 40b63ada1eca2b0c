"""Times of phases that show that most of a step is communication."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Confidence, Finding, Report

# DeepSpeed by its releases, and a loop of one's own.
MICRO = (
    "[2026-03-07 20:41:{5:02},119] [INFO] [logging.py:96:log_dist] [Rank {4}] time (ms) | "
    "fwd_microstep: {0:.2f} | bwd_microstep: {1:.2f} | bwd_inner_microstep: {2:.2f} | "
    "bwd_allreduce_microstep: {3:.2f} | step_microstep: 61.20"
)
WHOLE = (
    "[2026-03-07 20:41:{5:02},119] [INFO] [logging.py:96:log_dist] [Rank {4}] time (ms) | fwd: "
    "{0:.2f} | bwd: {1:.2f} | bwd_inner: {2:.2f} | bwd_allreduce: {3:.2f} | step: 61.20"
)
OLD = (
    "[2022-03-07 20:41:{5:02},119] [INFO] [logging.py:68:log_dist] [Rank {4}] rank={4} time (ms) | "
    "forward_microstep: {0:.2f} | backward_microstep: {1:.2f} | backward_inner_microstep: {2:.2f} "
    "| backward_allreduce_microstep: {3:.2f} | step_microstep: 61.20"
)
OWN = "[rank{4}]: step {5} | fwd {0:.1f} ms | bwd {2:.1f} ms | allreduce {3:.1f} ms | opt 61.2 ms"
FORMS = [MICRO, WHOLE, OLD, OWN]
MEGATRON = """\
(min, max) time across ranks (ms):
    forward-backward ...............................: ({0:.2f}, {0:.2f})
    forward-compute ................................: (410.02, 414.88)
    backward-compute ...............................: (801.55, 809.11)
    all-grads-sync .................................: ({1:.2f}, {2:.2f})
    optimizer-copy-to-main-grad ....................: (4.90, 5.31)
    optimizer ......................................: (61.90, 62.31)"""


def write(form: str, *comm: float, rank: int = 0) -> list[str]:
    return [
        form.format(190.4 + at, 401.2 + ms, 400.9, ms, rank, 10 + at) for at, ms in enumerate(comm)
    ]


def megatron(*syncs: tuple[float, float]) -> list[str]:
    return [
        line
        for least, most in syncs
        for line in MEGATRON.format(1230.0 + most, least, most).splitlines()
    ]


def find_bound(report: Report) -> list[Finding]:
    return [one for one in report.findings if one.code == "S310"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("prefix", ["", "w-2: "])
def test_steps_that_are_mostly_all_reduce_are_told(tmp_path: Path, form: str, prefix: str) -> None:
    lines = [prefix + line for line in write(form, 2104.9, 2250.3, 2171.5)]
    (finding,) = find_bound(say(tmp_path, *lines))

    assert (finding.confidence, finding.culprits.ranks) == (Confidence.POSSIBLE, [])
    assert "allreduce" in finding.summary


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(write(MICRO, 91.2, 88.1, 90.0), id="well"),
        pytest.param(write(MICRO, 2104.9), id="once"),
        pytest.param(write(MICRO, 9104.9, 88.1, 90.0, 87.0), id="first"),
        pytest.param(
            [*write(MICRO, 2104.9, 2250.3), *write(MICRO, 9.9, 10.3, rank=1)], id="one is late"
        ),
        pytest.param([one[:-90] for one in write(MICRO, 2104.9, 2250.3)], id="cut"),
    ],
)
def test_steps_that_are_mostly_work_are_not_told(tmp_path: Path, lines: list[str]) -> None:
    assert not find_bound(say(tmp_path, *lines))


def test_sync_of_all_ranks_is_told_of_megatron(tmp_path: Path) -> None:
    lines = megatron((2950.3, 2961.0), (2981.9, 2990.2), (2950.0, 2963.3))
    (finding,) = find_bound(say(tmp_path, *lines))

    assert finding.confidence is Confidence.LIKELY
    assert "all-grads-sync takes 2950 of" in finding.summary


@pytest.mark.parametrize(
    "syncs",
    [
        pytest.param([(61.0, 70.2), (60.4, 71.9)], id="well"),
        pytest.param([(11.0, 2970.2), (12.4, 2971.9)], id="one is late"),
        pytest.param([(2950.3, 2961.0)], id="once"),
        pytest.param([(2950.3, 2961.0), (60.4, 71.9), (61.0, 72.0), (60.0, 69.1)], id="first"),
    ],
)
def test_syncs_that_are_short_or_wait_are_not_told(
    tmp_path: Path, syncs: list[tuple[float, float]]
) -> None:
    assert not find_bound(say(tmp_path, *megatron(*syncs)))
