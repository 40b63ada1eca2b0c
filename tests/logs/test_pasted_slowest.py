"""Lines and tables that name the slowest rank of each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.logs.drawn import DRAWN, Draw
from tests.logs.test_told import say

from whystuck.evidence.finding import Report

LINES = (
    "{step} | slowest rank {rank} {s:.2f}s pix_tokens {work} | median {us:.2f}s pix_tokens {uw}",
    "it {step}: slowest=rank {rank} ({ms:.0f} ms, {work} tokens), others {ums:.0f} ms, {uw} tokens",
    "mean fwd {ums:.0f} ms n_frames={uw}; slowest rank: {rank} fwd {ms:.0f} ms n_frames={work}",
    "straggler rank {rank}  compute {s:.3f} s  seq_len {work}  p50 {us:.3f} s  seq_len {uw}",
)
TURNS = (5, 12, 0, 9, 3)
Cost = Callable[[int, int], float]
Told = tuple[int, int, int]


def by_work(_rank: int, work: int) -> float:
    return 90 + work / 12


def write(form: str, told: Sequence[Told], cost: Cost = by_work) -> list[str]:
    lines = []
    for step, (rank, work, usual) in enumerate(told):
        ms, other = cost(rank, work), by_work(-1, usual)
        lines.append(
            form.format(
                step=300 + step,
                rank=rank,
                work=work,
                uw=usual,
                ms=ms,
                ums=other,
                s=ms / 1000,
                us=other / 1000,
            )
        )
    return lines


def judge(folder: Path, *lines: str) -> list[tuple[str, list[int]]]:
    report: Report = say(folder, "16 ranks, half of the speed that I expect", *lines, "which one?")
    return [
        (one.code, one.culprits.ranks or [])
        for one in report.findings
        if not one.code.startswith("E")
    ]


UNEVEN = [(rank, 30000 + 800 * at, 12000 + 90 * at) for at, rank in enumerate(TURNS)]
ALWAYS = [(7, work, usual) for _, work, usual in UNEVEN]
ALIKE = [(rank, 12000, 12000) for rank in TURNS]


@pytest.mark.parametrize("form", LINES)
@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "w0-1 | "])
@pytest.mark.parametrize("told", [UNEVEN, ALWAYS, UNEVEN[:3]], ids=["turns", "one", "cut"])
def test_slowest_that_has_most_to_do_is_not_slow(
    tmp_path: Path, form: str, prefix: str, told: list[Told]
) -> None:
    lines = [f"{prefix}{line}" for line in write(form, told)]
    assert judge(tmp_path, *lines) == [("S308", [])]


@pytest.mark.parametrize("form", LINES)
def test_slowest_again_and_again_for_the_same_work(tmp_path: Path, form: str) -> None:
    told = [(7, 12000, 12000)] * 4
    lines = write(form, told, lambda _, work: 2 * by_work(7, work))
    assert judge(tmp_path, *lines) == [("S301", [7])]


@pytest.mark.parametrize("form", LINES)
def test_work_does_not_explain_all(tmp_path: Path, form: str) -> None:
    lines = write(form, [(7, 15000, 12000)] * 4, lambda _, work: 3 * by_work(7, work))
    assert judge(tmp_path, *lines) == [("S301", [7])]


@pytest.mark.parametrize("form", LINES)
def test_turns_without_more_work_tell_nothing(tmp_path: Path, form: str) -> None:
    lines = write(form, ALIKE, lambda _, work: 1.6 * by_work(-1, work))
    assert judge(tmp_path, *lines) == []


@pytest.mark.parametrize("form", LINES)
def test_two_steps_tell_nothing(tmp_path: Path, form: str) -> None:
    assert judge(tmp_path, *write(form, UNEVEN[:2])) == []


def test_work_of_nobody_else_tells_nothing(tmp_path: Path) -> None:
    lines = [
        f"slowest rank {rank}: {4.1 + rank / 100} s, {work} tokens" for rank, work, _ in UNEVEN
    ]
    assert judge(tmp_path, *lines) == []


HEADS = (
    (["step", "slowest rank", "fwd (ms)", "tokens", "median fwd (ms)", "median tokens"], 1),
    (["step", "slowest", "its time (s)", "its samples", "avg time (s)", "avg samples"], 1000),
    (["iter", "straggler rank", "compute ms", "imgs", "others compute ms", "others imgs"], 1),
)


def fill(told: Sequence[Told], unit: int, cost: Cost = by_work) -> list[list[str]]:
    return [
        [
            str(300 + step),
            str(rank),
            f"{cost(rank, work) / unit:.2f}",
            str(work),
            f"{by_work(-1, usual) / unit:.2f}",
            str(usual),
        ]
        for step, (rank, work, usual) in enumerate(told)
    ]


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize(("head", "unit"), HEADS)
def test_rows_of_steps(tmp_path: Path, draw: Draw, head: list[str], unit: int) -> None:
    assert judge(tmp_path, *draw(head, fill(UNEVEN, unit))) == [("S308", [])]


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize(("head", "unit"), HEADS)
def test_rows_of_steps_with_a_slow_rank(
    tmp_path: Path, draw: Draw, head: list[str], unit: int
) -> None:
    rows = fill([(7, 12000, 12000)] * 4, unit, lambda _, work: 2 * by_work(7, work))
    assert judge(tmp_path, *draw(head, rows)) == [("S301", [7])]


@pytest.mark.parametrize("draw", DRAWN)
def test_rows_of_steps_that_are_alike(tmp_path: Path, draw: Draw) -> None:
    head, unit = HEADS[0]
    assert judge(tmp_path, *draw(head, fill(ALIKE, unit))) == []
