"""Compilers among the processes that people list, below the ranks that others wait for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

WAIT = (
    "[rank{0}]:[E301 04:20:05.731100295 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, "
    "Timeout(ms)=600000) ran for 600004 milliseconds before timing out."
)
RANKS = {
    "forest": r"  410{0}   4000 Sl+     12:02 00:11:20  \_ python fit.py   # rank {0}",
    "full": "jo        410{0}   4000 98 04:08 pts/1    00:11:20 /opt/bin/python fit.py (rank {0})",
    "option": "410{0} 4000 Rl 12:02 11:20 python3.11 -u fit.py --rank {0}",
}
CHILDREN = {
    "forest": [
        r"  45{0}0   410{0} Sl+     09:10 00:00:03      \_ python compile_worker --parent=410{0}",
        r"  45{0}1   45{0}0 R+      {1} {1}          \_ /x/{2} -v --gpu-name=sm_90 /tmp/a.ptx",
    ],
    "full": [
        "jo        45{0}1   410{0} 99 04:10 pts/1    {1} /usr/local/cuda/bin/{2} -O3 /tmp/a.cu"
    ],
    "option": ["45{0}1 410{0} R {1} {1} /usr/lib/gcc/x86_64/13/{2} -quiet a.cpp"],
}


def show(form: str, *owners: int, took: str = "09:03", tool: str = "ptxas") -> list[str]:
    lines = []
    for rank in range(4):
        lines.append(RANKS[form].format(rank))
        lines += [row.format(rank, took, tool) for row in CHILDREN[form] if rank in owners]
    return lines


@pytest.mark.parametrize("form", RANKS)
@pytest.mark.parametrize("tool", ["ptxas", "cicc", "cc1plus", "nvcc"])
def test_rank_below_which_alone_a_compiler_runs_is_named(
    tmp_path: Path, form: str, tool: str
) -> None:
    lines = [WAIT.format(0), WAIT.format(3), "ps, shortly before:", *show(form, 2, tool=tool)]
    finding = first_of(say(tmp_path, *lines))

    assert (finding.name, finding.culprits.ranks) == ("compile-divergence", [2])
    assert finding.victims.ranks == "0-1,3"


@pytest.mark.parametrize("form", RANKS)
@pytest.mark.parametrize(
    ("owners", "took", "waits"),
    [
        pytest.param((0, 1, 2, 3), "09:03", (0, 3), id="all compile"),
        pytest.param((1, 2), "09:03", (0, 3), id="two compile"),
        pytest.param((2,), "00:04", (0, 3), id="has just begun"),
        pytest.param((2,), "09:03", (0, 2), id="it waits"),
        pytest.param((2,), "09:03", (), id="nobody waits"),
        pytest.param((), "09:03", (0, 3), id="none"),
    ],
)
def test_compilers_that_tell_of_no_rank(
    tmp_path: Path, form: str, owners: tuple[int, ...], took: str, waits: tuple[int, ...]
) -> None:
    report = say(tmp_path, *map(WAIT.format, waits), *show(form, *owners, took=took))

    assert "compile-divergence" not in {one.name for one in report.findings}


def test_compiler_of_another_parent_is_not_that_of_a_rank(tmp_path: Path) -> None:
    rows = [*show("forest"), r"  4510   3999 R+      09:10 00:09:03  \_ /x/ptxas -v /tmp/a.ptx"]
    report = say(tmp_path, WAIT.format(0), *rows)

    assert "compile-divergence" not in {one.name for one in report.findings}
