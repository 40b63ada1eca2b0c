"""A process that somebody looked at below a heading that says whose host or process it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

HEADINGS = [
    "node of rank {0}:",
    "training hangs since noon, rank 0-2 wait in all_reduce. host of rank {0}:",
    "on rank {0}'s node:",
    "this is rank {0} (the stuck one):",
    "RANK {0} ->",
]
ROWS = ["    PID STAT WCHAN      CMD", "  {0} D    {1} /opt/py/bin/python fit.py"]
LIST = ["$ ps -o pid,stat,wchan:30,cmd -p {0}", *ROWS]
FRAMES = [
    "root@n1:~# cat /proc/{0}/stack",
    "[<0>] {1}+0x25/0xb0 [sunrpc]",
    "[<0>] nfs_file_read+0x4a/0x60 [nfs]",
]
SILENT = "[Fri Mar  7 10:12:40 2025] nfs: server 10.1.0.5 not responding, still trying"
KERNEL = ["$ dmesg -T | tail -1", SILENT]
WAIT = "rpc_wait_bit_killable"


def ranks_of(folder: Path, *lines: str) -> list[list[int]]:
    return [list(one.culprits.ranks or []) for one in say(folder, *lines).findings]


def look(lines: list[str], pid: int) -> list[str]:
    return [line.format(pid, WAIT) for line in lines]


@pytest.mark.parametrize("heading", HEADINGS)
@pytest.mark.parametrize(
    ("shown", "kernel"),
    [(FRAMES, []), ([*LIST, *FRAMES], []), (LIST, KERNEL), (FRAMES, KERNEL)],
    ids=["stack", "both", "list and kernel", "stack and kernel"],
)
def test_process_below_the_heading_of_a_rank_is_that_rank(
    tmp_path: Path, heading: str, shown: list[str], kernel: list[str]
) -> None:
    lines = [heading.format(3), *look(shown, 71820), *kernel]

    assert ranks_of(tmp_path, *lines) == [[3]]


@pytest.mark.parametrize(
    "heading",
    [
        "node of local rank 3:",
        "all others wait for rank 3:",
        "any node but rank 3:",
        "ranks 2 and 3:",
        "ranks 2, 3:",
        "rank 2 and rank 3:",
        "node of rank 3: nothing odd there",
        "step of rank 3: 401",
    ],
)
def test_heading_of_others_names_no_rank(tmp_path: Path, heading: str) -> None:
    lines = [heading, *look([*LIST, *FRAMES], 71820), "$ dmesg -T | tail -1", SILENT]

    assert all(ranks == [] for ranks in ranks_of(tmp_path, *lines))


def test_two_processes_below_one_heading_are_no_rank(tmp_path: Path) -> None:
    lines = ["node of rank 3:", *look(FRAMES, 71820), *look(FRAMES, 71833), SILENT]

    assert all(ranks == [] for ranks in ranks_of(tmp_path, *lines))


def test_each_heading_has_its_own_process(tmp_path: Path) -> None:
    lines = ["rank 2 host:", *look(FRAMES, 71820), "rank 5 host:", *look(FRAMES, 640)]

    assert all(set(ranks) <= {2, 5} for ranks in ranks_of(tmp_path, *lines))


def test_command_far_below_a_heading_is_not_of_it(tmp_path: Path) -> None:
    lines = ["node of rank 3:", *(f"step {n} loss 1.{n}" for n in range(9)), *look(FRAMES, 71820)]

    assert all(ranks == [] for ranks in ranks_of(tmp_path, *lines))
