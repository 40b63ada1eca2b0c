"""Rows of ranks that name each of their times, without a head above them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Finding, Report

HEAD = "timers of each rank (ms), {0} x 8, it got slower:"
FORMS = {
    "wide": "  r{r:<3}data  {d:5.1f}  fwd  {f:6.1f}  bwd  {b:6.1f}  comm_wait  {w:6.1f}",
    "one blank": "r{r} data {d:.1f} fwd {f:.1f} bwd {b:.1f} comm {w:.1f}",
    "colon": "rank {r}: fwd={f:.1f}ms bwd={b:.1f}ms wait={w:.1f}ms",
    "bars": "rank {r} | data {d:.1f} ms | forward {f:.1f} ms | backward {b:.1f} ms | sync {w:.1f}",
    "equals": "rank={r} data={d:.1f} fwd={f:.1f} bwd={b:.1f} sync={w:.1f}",
    "commas": "rank{r}: data: {d:.1f}, fwd: {f:.1f}, bwd: {b:.1f}, comm: {w:.1f}",
    "brackets": "[r{r}] data {d:.1f} fwd {f:.1f} bwd {b:.1f} comm {w:.1f}",
    "clock": "11:40:02 rank {r} fwd {f:.1f} bwd {b:.1f} comm {w:.1f}",
    "step": "step 40 rank {r} fwd {f:.1f} bwd {b:.1f} comm {w:.1f}",
}


def write(form: str, slow: int, ranks: int = 8, *, waits: bool = True) -> list[str]:
    """Write three steps of all ranks; the slow one waits least, where others wait for it."""
    lines = [HEAD.format("1 node" if ranks == 8 else "2 nodes"), ""]
    for step in range(3):
        lines.append(f"step {step}")
        for rank in range(ranks):
            forward = 100.0 + (rank * 7 + step) % 4 + 60 * (rank == slow)
            wait = 6.0 if rank == slow and waits else 170.0 + rank % 3
            told = {"r": rank, "d": 3.1, "f": forward, "b": 1.9 * forward, "w": wait}
            lines.append(FORMS[form].format(**told))
    return lines


def slow_of(report: Report) -> Finding | None:
    return next((one for one in report.findings if one.code == "S301"), None)


@pytest.mark.parametrize("form", FORMS)
def test_rank_that_works_longest_is_named(tmp_path: Path, form: str) -> None:
    found = slow_of(say(tmp_path, *write(form, 5)))

    assert found is not None
    assert found.culprits.ranks == [5]


@pytest.mark.parametrize("form", FORMS)
def test_ranks_that_are_alike_are_not_named(tmp_path: Path, form: str) -> None:
    assert slow_of(say(tmp_path, *write(form, -1))) is None


@pytest.mark.parametrize("form", ["wide", "one blank", "equals"])
def test_rank_for_which_nobody_waits_is_not_slow(tmp_path: Path, form: str) -> None:
    assert slow_of(say(tmp_path, *write(form, 5, waits=False))) is None


CLOCKS = [
    "$ nvidia-smi --query-gpu=index,clocks.sm,temperature.gpu,power.draw --format=csv",
    "index, clocks.sm [MHz], temperature.gpu, power.draw [W]",
    *(f"{n}, {1035 if n == 3 else 1740} MHz, {92 if n == 3 else 60}, 600.10 W" for n in range(8)),
]


def test_slowed_device_of_the_same_number_is_told_beside_it(tmp_path: Path) -> None:
    found = slow_of(say(tmp_path, *write("wide", 11, 16), "", *CLOCKS))

    assert found is not None
    assert found.culprits.ranks == [11]
    assert "device 3 of a host is slowed" in found.summary


def test_slowed_device_of_another_number_is_not(tmp_path: Path) -> None:
    found = slow_of(say(tmp_path, *write("wide", 12, 16), "", *CLOCKS))

    assert found is not None
    assert "device 3" not in found.summary
