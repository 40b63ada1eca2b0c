"""Saves by one rank for which the others wait, as ranks print them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.logs.drawn import draw_blanks, draw_markdown
from tests.logs.test_told import say

from whystuck.evidence.finding import Report

SAVES = [
    "saved 78.1 GB in {0:.1f} s (310 MB/s)",
    "Saved checkpoint to /weka/step4000.pt, took {0:.0f}s",
    "wrote consolidated.pt in {0:.0f} seconds",
    "checkpoint written in {0:.1f} s",
    "save_pretrained(): done, 131 GB, {0:.1f} s",
    "saved step1100, {0:.1f} s, 719 MB/s",
    "wrote ckpt-1100.pt: {0:.1f} s",
    "Saved 27.4 GB (checkpoint) | {0:.1f} s",
    "checkpoint gespeichert: {0:.1f} s",
    "checkpoint guardado ({0:.1f} s)",
]
WAITS = [
    "save_checkpoint: barrier passed after {0:.1f} s",
    "barrier took {0:.1f}s",
    "waited {0:.0f} s for rank 0",
    "waited at the checkpoint barrier for {0:.1f} seconds",
    "barrier wait: {0:.1f} s",
]
STEP = "step {0} | 3.41 s | data 0.01 fwd 1.02 bwd 2.11 opt 0.21"


def write(
    save: str,
    wait: str,
    *,
    savers: Sequence[int] = (0,),
    waited: float = 251.9,
    took: float = 252.0,
) -> list[str]:
    lines = []
    for number in range(3):
        begin, end = f"2025-04-03 06:{20 * number:02}:01", f"2025-04-03 06:{20 * number + 4:02}:52"
        lines += [f"{begin} [rank {rank}] {STEP.format(4000 + number)}" for rank in (0, 5)]
        lines += [f"{end} [rank {rank}] {save.format(took)}" for rank in savers]
        lines += [f"{end} [rank {rank}] {wait.format(waited)}" for rank in (5, 11)]
    return lines


def told(report: Report) -> list[tuple[str, list[int]]]:
    return [(one.code, one.culprits.ranks) for one in report.findings]


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("wait", WAITS)
def test_others_wait_for_the_save_of_one(tmp_path: Path, save: str, wait: str) -> None:
    report = say(tmp_path, "Straggler: rank 0", *write(save, wait))

    assert told(report) == [("S305", [])]
    assert report.findings[0].details["rank"] == 0


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(write(SAVES[0], WAITS[0], savers=(0, 5, 11)), id="all save"),
        pytest.param(write(SAVES[0], WAITS[0], waited=0.2), id="nobody waits for it"),
        pytest.param(write(SAVES[0], WAITS[0], took=1.1, waited=1.1), id="it is soon over"),
        pytest.param(write(SAVES[0], WAITS[0], savers=()), id="nobody saves"),
        pytest.param(write(SAVES[0], STEP), id="nobody says that it waited"),
        pytest.param(write(SAVES[0], WAITS[0], took=20, waited=20), id="a small share of the time"),
    ],
)
def test_saves_that_cost_nobody_much(tmp_path: Path, lines: list[str]) -> None:
    assert "S305" not in [code for code, _ in told(say(tmp_path, *lines))]


@pytest.mark.parametrize("name", ["ckpt", "checkpoint save", "save"])
def test_table_with_a_column_of_saves(tmp_path: Path, name: str) -> None:
    head = ["rank", "data", "fwd", "bwd", name, "barrier"]
    rows = [[str(rank), "9", "612", "1202", "0.2", "2040"] for rank in range(8)]
    rows[0][4:] = ["2051", "4"]

    assert told(say(tmp_path, "ms, mean of 100 steps", *draw_markdown(head, rows))) == [
        ("S305", [])
    ]
    for row in rows:
        row[4] = "2051"
    assert told(say(tmp_path, "ms, mean of 100 steps", *draw_blanks(head, rows))) == []
