"""Times of steps beside how much each rank had to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Report

FORMS = {
    "boxes": "[s {step}][rk {rank}] tokens {work:>6}  fwd+bwd {s:.3f}s",
    "bars": "[rank{rank}]: step {step} | n_tokens={work} | fwd {ms:.1f} ms | loss 2.11",
    "words": "rank {rank} step {step}: {work} tokens, forward time: {ms:.1f} ms, {rate} tokens/s",
}
WORK = [
    [6144, 5980, 7011, 15872],
    [6320, 14904, 6833, 6010],
    [12480, 6604, 7122, 5890],
    [6002, 7040, 16001, 6544],
]
Cost = Callable[[int, int], float]


def write(form: str, work: list[list[int]], cost: Cost) -> list[str]:
    lines = []
    for step, of_step in enumerate(work):
        for rank, count in enumerate(of_step):
            ms = cost(rank, count)
            told = {"step": 7001 + step, "rank": rank, "work": count, "rate": 10000 + 7 * rank}
            lines.append(FORMS[form].format(**told, ms=ms, s=ms / 1000))
    return lines


def by_work(rank: int, count: int) -> float:
    return count / 10 + 4 + rank


def judge(folder: Path, *lines: str) -> Report:
    return say(folder, "Is gpu 3 bad? util is around 55 % on all four", *lines)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("prefix", ["", "w0-1 | "])
def test_times_that_follow_the_work_blame_nobody(tmp_path: Path, form: str, prefix: str) -> None:
    lines = [f"{prefix}{line}" for line in write(form, WORK, by_work)]
    report = judge(tmp_path, *lines)

    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("S308", [])]


def test_fixed_costs_of_a_step_hide_nothing(tmp_path: Path) -> None:
    lines = write("bars", WORK, lambda rank, count: 300 + by_work(rank, count))

    assert [one.code for one in judge(tmp_path, *lines).findings] == ["S308"]


@pytest.mark.parametrize(
    "line",
    [
        (
            "(WorkerDict pid={pid}, ip=10.9.0.{node}) step {step} rank {rank}  tokens={work:>6} "
            "update {s:.2f}s wait 0.21s"
        ),
        "[rank{rank}]: step {step} | num_tokens: {work} | train_time: {ms:.0f} ms",
        "rank {rank} step {step}: samples={work}, actor_update={ms:.1f} ms",
    ],
)
def test_two_steps_tell_it_where_another_rank_is_slow(tmp_path: Path, line: str) -> None:
    lines = [
        line.format(
            pid=3100 + rank, node=rank // 2, step=step, rank=rank, work=work, s=ms / 1000, ms=ms
        )
        for step, of_step in enumerate(WORK[:2])
        for rank, work in enumerate(of_step)
        for ms in [by_work(rank, work)]
    ]

    report = judge(tmp_path, *lines)

    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("S308", [])]


def test_rank_that_always_has_most_work_is_not_slow(tmp_path: Path) -> None:
    work = [[6000 + 10 * step, 6100, 6050, 15000 + 10 * step] for step in range(4)]

    report = judge(tmp_path, *write("bars", work, by_work))

    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("S308", [])]


def test_rank_that_is_slow_for_its_work_is_named(tmp_path: Path) -> None:
    lines = write("bars", [[6144] * 4] * 4, lambda rank, count: count / (7 if rank == 3 else 10))

    report = judge(tmp_path, *lines)

    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("S301", [3])]


@pytest.mark.parametrize(
    ("work", "cost"),
    [
        pytest.param(WORK, lambda rank, count: count / (7 if rank == 3 else 10), id="one is slow"),
        pytest.param(WORK, lambda rank, _: 600 + 90 * rank, id="times of ranks"),
        pytest.param(WORK, lambda _, count: 900 - count / 40, id="more work in less time"),
        pytest.param(WORK[:1] * 2, by_work, id="two steps of one rank"),
        pytest.param(
            WORK[:2], lambda rank, count: count / (8.7 if rank == 3 else 10), id="two steps"
        ),
        pytest.param([[6000, 6020, 6010, 6030]] * 4, by_work, id="equal work"),
        pytest.param([[of[0]] * 4 for of in WORK], by_work, id="steps differ, ranks do not"),
        pytest.param([of[:2] for of in WORK], by_work, id="two ranks"),
    ],
)
def test_times_that_work_does_not_explain_are_no_imbalance(
    tmp_path: Path, work: list[list[int]], cost: Cost
) -> None:
    report = judge(tmp_path, *write("bars", work, cost))

    assert all(one.code != "S308" for one in report.findings)


def test_counts_in_a_second_are_no_work(tmp_path: Path) -> None:
    lines = [
        f"[rank{rank}]: step {step} | {count} tokens/s | tokens per s {count} | fwd {ms:.1f} ms"
        for step, of_step in enumerate(WORK)
        for rank, count in enumerate(of_step)
        for ms in [by_work(rank, count)]
    ]

    assert all(one.code != "S308" for one in judge(tmp_path, *lines).findings)


HEADS_OF_STEPS = {
    "remark": "rank   tokens  busy_s  wait_s      (update, step {0})",
    "brackets": "rank   tokens  busy_s  wait_s   [step {0}, actor]",
    "comment": "rank   tokens  busy_s  wait_s   # step {0} of 90",
    "plain": "rank   tokens  busy_s  wait_s",
}


def draw(head: str, costs: list[list[tuple[int, float]]]) -> list[str]:
    """Draw a table of each step; work and seconds of each rank."""
    lines = []
    for step, of_step in enumerate(costs):
        lines += [f"step {step}:", HEADS_OF_STEPS[head].format(step)]
        most = max(busy for _, busy in of_step)
        lines += [
            f"{rank:>4} {work:>9} {busy:>7.1f} {most - busy + 2:>7.1f}"
            for rank, (work, busy) in enumerate(of_step)
        ]
    return lines


@pytest.mark.parametrize("head", HEADS_OF_STEPS)
@pytest.mark.parametrize("prefix", ["", "> "])
def test_tables_of_two_steps_are_judged_together(tmp_path: Path, head: str, prefix: str) -> None:
    costs = [[(work, work / 1400 + 0.5) for work in of_step[1:]] for of_step in WORK[:2]]
    report = judge(tmp_path, *(f"{prefix}{line}" for line in draw(head, costs)))

    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("S308", [])]


@pytest.mark.parametrize("head", HEADS_OF_STEPS)
@pytest.mark.parametrize(
    "costs",
    {
        # one rank takes as long for less work
        "slow rank": [
            [(6000, 4.2), (15000, 11.0), (6000, 11.1)],
            [(14900, 10.9), (6000, 4.3), (6100, 11.4)],
        ],
        "one is last": [
            [(6000, 4.2), (15000, 11.0), (6100, 4.4)],
            [(6000, 4.3), (15200, 11.2), (6100, 4.5)],
        ],
        "alike": [[(6000, 4.2), (6010, 4.3), (6020, 4.2)], [(6010, 4.2), (6000, 4.2), (6000, 4.3)]],
        "one step": [[(6000, 4.2), (15000, 11.0), (6100, 4.4)]],
    }.values(),
)
def test_tables_that_work_does_not_explain_are_not_told(
    tmp_path: Path, head: str, costs: list[list[tuple[int, float]]]
) -> None:
    report = judge(tmp_path, *draw(head, costs))

    assert all(one.code != "S308" for one in report.findings)
