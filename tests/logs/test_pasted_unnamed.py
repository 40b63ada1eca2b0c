"""Tables whose head says once what the cells of all ranks hold, in the order of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

WORK = [
    [8326, 8617, 15296, 7385, 7237, 7879],
    [8738, 7507, 7253, 8624, 15905, 7545],
    [15740, 7769, 7257, 7843, 9177, 8286],
    [7999, 8229, 8406, 8179, 7299, 16712],
]
FORMS = {
    "step   rank: tokens/ms": ("{work:6}/{ms:4.0f}", "  "),
    "step   per rank: tok / ms": ("{work} / {ms:.1f}", "   "),
    "step | ranks 0-5: n_tokens/ms": ("{work}/{ms:.0f}", " | "),
    "iter   tokens/ms per rank": ("{work}/ {ms:.1f}", " "),
    "iter   tokens / ms by rank (0..5)": ("{work}/{ms:.1f}", "  "),
    "step   ranks: samples/ms": ("{work}@{ms:.0f}", "  "),
    "per rank (seq_len/ms)": ("{work}/{ms:.0f}", "\t"),
}


def table(head: str, slow: int = -1, work: list[list[int]] = WORK) -> list[str]:
    form, mark = FORMS[head]
    rows = [head]
    for at, of_step in enumerate(work):
        cells = [
            form.format(work=count, ms=count / 19.5 * (2 if rank == slow else 1))
            for rank, count in enumerate(of_step)
        ]
        rows.append(mark.join([f"{5200 + at}" * ("per rank (" not in head), *cells]).lstrip())
    return rows


def judge(folder: Path, lines: list[str]) -> list[tuple[str, list[int]]]:
    report = say(folder, "who is slow?", "", *lines, "", "thanks")
    return [(one.code, one.culprits.ranks) for one in report.findings if one.code != "E901"]


@pytest.mark.parametrize("head", FORMS)
def test_times_that_follow_the_work_blame_nobody(tmp_path: Path, head: str) -> None:
    assert judge(tmp_path, table(head)) == [("S308", [])]


@pytest.mark.parametrize("head", [*FORMS][:4])
def test_rank_that_is_slow_for_its_work_is_no_imbalance(tmp_path: Path, head: str) -> None:
    alike = [[8000 + 9 * rank + at for rank in range(6)] for at in range(4)]

    lines = ["tokens and forward time (ms) of each step", *table(head, 4, alike)]

    assert judge(tmp_path, lines) == [("S301", [4])]


@pytest.mark.parametrize(
    "lines",
    [
        # of other things than ranks
        ["step   batch: tokens/ms", *table("step   rank: tokens/ms")[1:]],
        # three numbers for ranks that are six
        ["step | ranks 0-7: n_tokens/ms", *table("step | ranks 0-5: n_tokens/ms")[1:]],
        # what is counted in a second
        ["step   rank: tokens/s", *(f"5{at}  8326  861{at}  1529{at}  7385" for at in range(9))],
        ["the slow rank: tokens/ms below", "10/12 20/22 done", "11/12 21/22 done"],
    ],
    ids=["batches", "other ranks", "rates", "text"],
)
def test_other_heads_begin_no_table(tmp_path: Path, lines: list[str]) -> None:
    assert judge(tmp_path, lines) == []
