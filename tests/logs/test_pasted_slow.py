"""Times that ranks print, on one line or in tables: who is slow, and who only waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_near import blamed_of
from tests.logs.test_told import first_of, say

BARS = "[rank{0}]: step 120 | fwd {1:.1f} ms | bwd {2:.1f} ms | allreduce {3:.1f} ms"
WORDS = "rank {0}: forward time: {1:.2f} ms, backward time: {2:.2f} ms, grad sync {3:.1f} ms"
SECONDS = "[2026-03-04 10:00:00] [rank={0}] forward=0.{1:.0f}s backward=0.{2:.0f}s"
TIMERS = "[Rank {0}] time (ms) | fwd_microstep: {1:.2f} | bwd_microstep: {2:.2f} | step: 3.1"
MEGATRON = "[rank{0}]: time (ms) | forward-compute: {1:.2f} | backward-compute: {2:.2f}"
FORMS = [BARS, WORDS, SECONDS, TIMERS, MEGATRON]


def times(form: str, forward: dict[int, float], backward: dict[int, float]) -> list[str]:
    return [
        form.format(rank, forward.get(rank, 231.0), backward.get(rank, 472.0), 12.0)
        for rank in range(8)
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("prefix", ["", "2026-03-04T10:12:32.5Z stderr F "])
def test_rank_whose_forward_takes_longest_is_slow(tmp_path: Path, form: str, prefix: str) -> None:
    lines = times(form, {5: 391.0}, {})
    report = say(tmp_path, *(prefix + line for line in lines))

    assert (first_of(report).code, first_of(report).culprits.ranks) == ("S301", [5])


def test_rank_is_slow_by_the_middle_of_what_it_prints(tmp_path: Path) -> None:
    # Rank 2 is slow once, rank 5 in each step.
    steps = [
        times(BARS, {5: 391.0 + step} | ({2: 900.0} if step == 3 else {}), {}) for step in range(7)
    ]
    report = say(tmp_path, *(line for step in steps for line in step))

    assert (first_of(report).code, first_of(report).culprits.ranks) == ("S301", [5])


@pytest.mark.parametrize(
    "line",
    [
        "forward (ms): rank 0: 231, rank 1: 233, rank 2: 230, rank 3: 412",
        "fwd per rank (ms): [231.0, 233.1, 230.2, 412.7]",
        "fwd ms r0=231 r1=233 r2=230 r3=412",
        "times [rank0] fwd 231ms  [rank1] fwd 233ms  [rank2] fwd 230ms  [rank3] fwd 412ms",
        "times rank 0 h2d 41 ms, rank 1 h2d 40 ms, rank 2 h2d 44 ms, rank 3 h2d 412 ms",
    ],
)
def test_ranks_on_one_line_are_compared(tmp_path: Path, line: str) -> None:
    report = say(tmp_path, f"INFO step 80 {line}")

    assert (first_of(report).code, first_of(report).culprits.ranks) == ("S301", [3])


def test_columns_of_a_table_are_compared(tmp_path: Path) -> None:
    rows = [f"{rank}     23{rank}.0    {690 if rank == 2 else 472}.1    31.0" for rank in range(4)]
    report = say(tmp_path, "rank  fwd_ms   bwd_ms   opt_ms", *rows)

    assert (first_of(report).code, first_of(report).culprits.ranks) == ("S301", [2])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ({}, {}),
        ({5: 240.0}, {}),
        (dict.fromkeys(range(4), 391.0), {}),
    ],
    ids=["alike", "nearly", "two stages"],
)
def test_times_that_are_alike_name_nobody(
    tmp_path: Path, form: str, forward: dict[int, float], backward: dict[int, float]
) -> None:
    assert blamed_of(say(tmp_path, *times(form, forward, backward)))[0] == set()


def test_rank_that_only_waits_less_is_not_slow(tmp_path: Path) -> None:
    lines = [f"[rank{rank}]: fwd_allreduce: {9 if rank == 2 else 410}.0" for rank in range(8)]

    assert blamed_of(say(tmp_path, *lines))[0] == set()


RANGES = """\
(min, max) time across ranks (ms):
    forward-backward ...............................: (3243.67, 3248.51)
    forward-compute ................................: ({0:.2f}, {1:.2f})
    backward-compute ...............................: (1805.03, 1954.45)
    optimizer ......................................: (31.02, 31.99)"""


def test_ranges_tell_that_some_rank_is_slow(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *RANGES.format(1214.35, 2233.13).splitlines()))

    assert (finding.code, finding.culprits.ranks) == ("S301", [])


@pytest.mark.parametrize(
    "lines",
    [
        RANGES.format(1214.35, 1233.13).splitlines(),
        # Stages of a pipeline have different work.
        [
            *RANGES.format(1214.35, 2233.13).splitlines(),
            "    forward-recv ...................................: (10.00, 900.00)",
        ],
        # The first step compiles and tunes.
        [*RANGES.format(214.35, 9233.13).splitlines(), *RANGES.format(214.3, 221.1).splitlines()],
    ],
    ids=["alike", "stages", "first step"],
)
def test_ranges_that_are_narrow_or_of_stages_tell_nothing(tmp_path: Path, lines: list[str]) -> None:
    assert all(one.code != "S301" for one in say(tmp_path, *lines).findings)


@pytest.mark.parametrize(
    "line",
    [
        "[rank0] fwd 231ms  [rank1] fwd 233ms  [rank2] fwd 230ms",
        "[rank0] fwd 231ms  [rank1] fwd 233ms  [rank2] fwd 230ms  [rank3] fwd 234ms",
        "[rank0] fwd 231ms  [rank0] fwd 233ms  [rank0] fwd 230ms  [rank0] fwd 912ms",
        "step [rank0] h2d 41 KB  [rank1] h2d 41 KB  [rank2] h2d 41 KB  [rank3] h2d 911 KB",
    ],
)
def test_lines_of_ranks_in_which_nobody_is_slow(tmp_path: Path, line: str) -> None:
    assert blamed_of(say(tmp_path, f"INFO step 80 {line}")) == (set(), set())
