"""Mismatches that two ranks print and the others are said to print, or are known to print by it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import _CALL, first_of, say

USUAL, ODD = ("ALLREDUCE", "8", "Float"), ("REDUCE", "8", "Float")
HALF = ("ALLREDUCE", "8", "Half")


def tell(rank: int, call: tuple[str, str, str], peer: int, other: tuple[str, str, str]) -> str:
    """Write what one rank prints whose call differs from that of a peer."""
    check = "RuntimeError: Detected mismatch between collectives on ranks."
    return f"[rank{rank}]: {check} {_CALL.format(rank, *call)}, but {_CALL.format(peer, *other)}."


OF_4 = [tell(4, ODD, 0, USUAL), tell(0, USUAL, 4, ODD)]
OF_2 = [tell(0, USUAL, 2, HALF), tell(2, HALF, 0, USUAL)]
OF_0 = [tell(0, HALF, 1, USUAL), tell(1, USUAL, 0, HALF)]
# What is said of the ranks that are not shown.
SAID = {
    "list": "(rank 0,1,3 print the same, only one pasted)",
    "Chinese": "(rank 0,1,3 的报错是一样的,只贴一个)",
    "and": "ranks 0, 1 and 3 have identical tracebacks",
    "as": "ranks 1 and 3: same error as rank 0",
    "line": "[rank3]: RuntimeError: ... same as rank 0",
    "more lines": "[rank3]: (same message as [rank0])",
    "cut": "[rank3]: Detected mismatch ... same as rank 0, but Rank 2 is running Half",
    "others": "the other ranks print the same as rank 0",
    "rest": "rest identical to rank 0",
    "cut of others": "all the other ranks print the same but with: but Rank 2 is running Half",
}


def test_rank_before_the_first_that_differs_agrees_with_who_names_it(tmp_path: Path) -> None:
    # A rank compares itself with all others in their order, and names the first that differs.
    found = first_of(say(tmp_path, *OF_4))

    assert (found.code, found.culprits.ranks) == ("H105", [4])
    assert found.confidence == "likely"


def test_names_of_peers_in_messages_that_are_cut_count(tmp_path: Path) -> None:
    cut = [
        (
            '[default1]:[rank1]: ... same message as rank 0 with "Rank 1 is running collective: '
            '... OpType=ALLREDUCE", but Rank 4 ... REDUCE'
        ),
        "[default2]:[rank2]: ... same, ALLREDUCE, but Rank 4 ... REDUCE",
    ]

    assert first_of(say(tmp_path, *OF_4, *cut)).culprits.ranks == [4]


@pytest.mark.parametrize("form", SAID)
def test_ranks_that_are_said_to_print_the_same_count(tmp_path: Path, form: str) -> None:
    found = first_of(say(tmp_path, *OF_2, "WORLD_SIZE=4", SAID[form]))

    assert (found.code, found.culprits.ranks) == ("H107", [2])


def test_all_others_that_name_one_rank_are_right(tmp_path: Path) -> None:
    told = [tell(rank, USUAL, 0, HALF) for rank in (1, 2, 3)]

    assert first_of(say(tmp_path, *told, OF_0[0])).culprits.ranks == [0]


@pytest.mark.parametrize(
    "lines",
    [
        OF_0,
        [*OF_0, "WORLD_SIZE=2"],
        [*OF_2, "WORLD_SIZE=4"],
        [*OF_2, "$ torchrun --nproc-per-node=4 train.py"],
        [*OF_2, "WORLD_SIZE=8", "[rank3]: RuntimeError: ... same as rank 0"],
        [*OF_2, "WORLD_SIZE=4", "rank 1 and 3 are not the same"],
        [*OF_2, "WORLD_SIZE=4", "rank 0 and 3 have the same GPU"],
        [*OF_2, "WORLD_SIZE=4", "[rank3]: same as rank 2"],
        [*OF_0, "WORLD_SIZE=4", "[rank3]: ... but Rank 0 is running"],
    ],
    ids=[
        "pair", "two", "half", "launched", "eight", "denied", "other thing", "tie", "unknown side",
    ],
)  # fmt: skip
def test_nobody_is_named_where_the_sides_are_not_known(tmp_path: Path, lines: list[str]) -> None:
    assert first_of(say(tmp_path, *lines)).culprits.ranks == []
