"""Watchdogs of two ranks in different calls, and others that are said to print as one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

WAIT = (
    "[rank{0}]:[E807 05:12:33.401772013 ProcessGroupNCCL.cpp:688] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=9102, OpType={1}, NumelIn={2}, NumelOut={2}, "
    "Timeout(ms)=600000) ran for 600019 milliseconds before timing out."
)
AT = (
    "[rank{0}]:[E807 05:12:33.401904410 ProcessGroupNCCL.cpp:2252] [PG ID 1 PG GUID 9(dp) Rank {0}]"
    "  failure detected by watchdog at work sequence id: 9102 PG status: last enqueued work: "
    "9102, last completed work: 9101"
)


def wait(rank: int, op: str = "ALLREDUCE", size: int = 4096) -> list[str]:
    return [WAIT.format(rank, op, size), AT.format(rank)]


PAIR = [*wait(2), *wait(5, "_ALLGATHER_BASE")]
SAID = {
    "one": "# rank 3 prints the same as rank 2",
    "list": "(ranks 0, 1 and 3: same error as rank 2)",
    "with it": "ranks 0-2 print the same, I left the others out",
    "line": "[rank3]: ... same as rank 2",
    "others": "all other ranks say the same as rank 2",
    "Chinese": "rank 2,3 的日志一样",
}


@pytest.mark.parametrize("form", SAID)
def test_rank_in_another_op_is_named_beside_those_that_are_said_to_print_the_same(
    tmp_path: Path, form: str
) -> None:
    found = first_of(say(tmp_path, "WORLD_SIZE=8", *PAIR, SAID[form]))

    assert (found.code, found.culprits.ranks) == ("H105", [5])


@pytest.mark.parametrize("form", SAID)
def test_tensor_of_another_size_is_named_as_well(tmp_path: Path, form: str) -> None:
    lines = [*wait(2), *wait(5, size=4094)]
    found = first_of(say(tmp_path, *lines, SAID[form]))

    assert (found.code, found.culprits.ranks) == ("H106", [5])


@pytest.mark.parametrize(
    "said",
    [
        [],
        ["# rank 3 prints the same as rank 2", "# rank 4 prints the same as rank 5"],
        ["# rank 2 and rank 5 print the same error"],
        ["# ranks 3 and 4 print the same"],
        ["# rank 3 does not print the same as rank 2"],
        ["# rank 3 has the same host as rank 2"],
        ["# rank 3 prints nearly the same as rank 2"],
        ["# rank 3 runs the same image as rank 2"],
    ],
    ids=["none", "both", "each other", "neither", "denied", "host", "nearly", "image"],
)
def test_nobody_is_named_where_that_is_not_said(tmp_path: Path, said: list[str]) -> None:
    found = first_of(say(tmp_path, *PAIR, *said))

    assert (found.code, found.culprits.ranks) == ("H105", [])


def test_those_that_print_as_the_odd_one_are_the_most(tmp_path: Path) -> None:
    found = first_of(say(tmp_path, *PAIR, "# ranks 3 and 4 print the same as rank 5"))

    assert found.culprits.ranks == [2]
