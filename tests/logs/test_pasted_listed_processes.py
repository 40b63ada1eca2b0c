"""Stacks of processes whose ranks a list or a loop tells, in the same order."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_near import blamed_of
from tests.logs.test_told import first_of, say

PIDS = (7001, 7013, 7022, 7040)
LOOP = "$ for {0} in {1}; do py-spy dump --pid $(cat /run/me/w${0}.pid); done"


def show(pid: int, call: str = "", line: int = 61) -> list[str]:
    frames = ["    all_gather (torch/distributed/distributed_c10d.py:2800)"] if not call else []
    frames += [f"    {call} (feed.py:9)"] if call else []
    return [
        f"Process {pid}: python3 fit.py",
        f'Thread {pid} (idle): "MainThread"',
        *frames,
        f"    step (fit.py:{line})",
    ]


def paste() -> list[str]:
    calls = ("", "", "read_remote", "")
    return [row for pid, call in zip(PIDS, calls, strict=True) for row in show(pid, call)]


LISTS = [
    "7001 7013 7022 7040 = rank 0 1 3 2",
    "(7001, 7013, 7022 and 7040 are ranks 0, 1, 3 and 2)",
    "ranks 0/1/3/2: 7001/7013/7022/7040",
    "rank 0,1,3,2 -> 7001,7013,7022,7040 on this box",
]


@pytest.mark.parametrize("told", LISTS)
@pytest.mark.parametrize("is_first", [True, False])
def test_list_of_processes_tells_their_ranks(tmp_path: Path, told: str, *, is_first: bool) -> None:
    lines = [told, *paste()] if is_first else [*paste(), told]
    found = first_of(say(tmp_path, *lines))

    assert (found.code, found.culprits.ranks, found.victims.ranks) == ("H101", [3], "0-2")


@pytest.mark.parametrize(
    "loop",
    [
        LOOP.format("r", "0 1 2 3"),
        LOOP.format("rank", "{0..3}"),
        LOOP.format("r", "$(seq 0 3)"),
    ],
)
def test_loop_over_ranks_shows_them_in_its_order(tmp_path: Path, loop: str) -> None:
    found = first_of(say(tmp_path, loop, *paste()))

    assert (found.code, found.culprits.ranks, found.victims.ranks) == ("H101", [2], "0-1,3")


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(["7001 7013 7022 = rank 0 1 2", *paste()], id="one is not listed"),
        pytest.param(["7001 7013 7022 7040 = rank 0 1 2", *paste()], id="too few"),
        pytest.param(["7001 7013 7022 7040 are not ranks 0 1 2 3", *paste()], id="denied"),
        pytest.param(["7001 7013 7022 7040 = local ranks 0 1 2 3", *paste()], id="local"),
        pytest.param([LISTS[0], LISTS[1].replace("3 and 2", "2 and 3"), *paste()], id="two lists"),
        pytest.param([LOOP.format("i", "0 1 2 3"), *paste()], id="loop over others"),
        pytest.param([LOOP.format("r", "0 1 2"), *paste()], id="shorter loop"),
        pytest.param(["[rank6]: it 3", LOOP.format("r", "0 1 2 3"), *paste()], id="one of hosts"),
        pytest.param([*paste(), LOOP.format("r", "0 1 2 3")], id="loop below"),
    ],
)
def test_lists_that_do_not_fit_name_nobody(tmp_path: Path, lines: list[str]) -> None:
    assert blamed_of(say(tmp_path, *lines)) == (set(), set())
