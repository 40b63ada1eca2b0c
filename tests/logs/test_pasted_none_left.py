"""Ranks that did not come to a collective, and say that they had nothing for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

MISSING = "Not all ranks joining collective, sequence number: 9602\nmissing ranks: {2}\n"
NONE = [
    "[rank2]: step=722 labels kept: 0",
    "2026-02-02 22:41:19,377 rank=2 step=722 labels kept: 0",
    "[rank2]: WARNING 0 of 16 utterances left after max_len filter",
    "[rank2]: batch 78: valid tokens=0, lr=0.1",
    "rank 2: no valid boxes in this batch",
    "[rank2]: kept = 0/512",
    "[rank2]: zero samples remain after the filter",
]


def judge(report: Report) -> tuple[str, list[int]]:
    return first_of(report).name, first_of(report).culprits.ranks


@pytest.mark.parametrize("line", NONE)
def test_missing_rank_that_had_nothing_left_a_call_out(tmp_path: Path, line: str) -> None:
    assert judge(say(tmp_path, MISSING, line)) == ("skipped-collective", [2])


OTHER = {
    "some": ["[rank2]: labels kept: 512", "[rank2]: 12 of 16 utterances left after the filter"],
    "a share": ["[rank2]: labels kept: 0.93", "[rank2]: valid=0.5"],
    "another rank": ["[rank1]: labels kept: 0"],
    "all of them": [f"[rank{rank}]: labels kept: 0" for rank in range(4)],
    "no error": ["[rank2]: no samples were dropped", "[rank2]: 0 of 3 retries"],
}


@pytest.mark.parametrize("name", OTHER)
def test_rank_that_had_some_is_missing_only(tmp_path: Path, name: str) -> None:
    assert judge(say(tmp_path, MISSING, *OTHER[name])) == ("rank-never-joined", [2])


GAVE_UP = (
    "[rank{0}]:[E602 11:17:52.400612945 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=971, OpType={2}, NumelIn={1}, NumelOut={1}, "
    "Timeout(ms)=600000) ran for 600021 milliseconds before timing out."
)


def give_up(own: int = 4_000_000, usual: int = 1, op: str = "ALLREDUCE") -> list[str]:
    told = [GAVE_UP.format(rank, usual, "ALLREDUCE") for rank in (0, 1, 3)]
    return [told[0], GAVE_UP.format(2, own, op), *told[1:]]


@pytest.mark.parametrize("prefix", ["", "(Actor pid=812) "])
@pytest.mark.parametrize(
    "line",
    [
        "0/16 samples kept by the filter, return",
        "zero tokens left in this batch",
        "skipping the metric sync",
        "pos=0 -> no gt in batch, skipping box loss",
    ],
)
def test_rank_in_the_next_call_that_had_nothing_left_one_out(
    tmp_path: Path, line: str, prefix: str
) -> None:
    report = say(tmp_path, f"{prefix}[rank2] {line}", *give_up())

    assert judge(report) == ("skipped-collective", [2])
    assert first_of(report).victims.ranks == "0-1,3"


@pytest.mark.parametrize(
    "line",
    [
        "[rank2] 0 of 16 utterances left after max_len, skipping the batch",
        "[rank2]: no valid boxes in this batch -> return",
        "[rank2] it 78 tokens kept: 0, going to the next step",
        "[rank2]: labels kept: 0 (continue)",
    ],
)
@pytest.mark.parametrize("op", ["BROADCAST", "_REDUCE_SCATTER_BASE"])
def test_rank_that_jumps_over_a_few_numbers_is_in_the_next_call(
    tmp_path: Path, line: str, op: str
) -> None:
    report = say(tmp_path, line, *give_up(op=op))

    assert judge(report) == ("skipped-collective", [2])
    assert first_of(report).victims.ranks == "0-1,3"


@pytest.mark.parametrize(
    "lines",
    {
        "all say so": [*(f"[rank{rank}] 0/16 samples kept" for rank in range(4)), *give_up()],
        "another one": ["[rank1] 0/16 samples kept by it", *give_up()],
        "nobody": ["0/16 samples kept by it", *give_up()],
        "some kept": ["[rank2] 10/16 samples kept by it", *give_up()],
        "each step": [*(f"[rank2] step {n}: 0/16 samples kept" for n in (4, 9)), *give_up()],
        "large data": ["[rank2] 0/16 samples kept by it", *give_up(3_000_000, 4_000_000)],
        "fewer": ["[rank2] 0/16 samples kept by it", *give_up(1, 4_000_000)],
        "another op, large": [
            "[rank2] no valid boxes in this batch -> return",
            *give_up(5_000_000, 4_000_000, op="BROADCAST"),
        ],
        "another op, fewer": [
            "[rank2] no valid boxes in this batch -> return",
            *give_up(1, 4, op="BROADCAST"),
        ],
        "another op, of another one": [
            "[rank1] no valid boxes in this batch -> return",
            *give_up(op="BROADCAST"),
        ],
        "another op, goes on": [
            "[rank2] no valid boxes in this batch, loss from the rest, continue with the head",
            *give_up(op="BROADCAST"),
        ],
        "another op": ["[rank2] 0/16 samples kept by it", *give_up(op="BROADCAST")],
    }.values(),
)
def test_sizes_that_differ_for_another_reason_are_a_mismatch(
    tmp_path: Path, lines: list[str]
) -> None:
    assert first_of(say(tmp_path, *lines)).name in {"shape-mismatch", "op-mismatch"}


@pytest.mark.parametrize(
    "line",
    ["it 412 rank 2 pos=0 -> no gt in batch, skipping box loss", "[rank2] 0/16 samples kept by it"],
)
def test_of_two_ranks_the_one_that_says_so_left_it_out(tmp_path: Path, line: str) -> None:
    report = say(tmp_path, line, *give_up()[:2])

    assert judge(report) == ("skipped-collective", [2])
    assert first_of(report).victims.ranks == "0"


@pytest.mark.parametrize(
    "line",
    [
        "[rank0] 0/16 samples kept by it",
        "[rank1] skipping the metric sync",
        "ranks: rank 0, rank 2: skipping the metric sync",
        "[rank2] skipping loss scaling",
    ],
)
def test_of_two_ranks_nobody_is_named_by_the_word_of_another(tmp_path: Path, line: str) -> None:
    finding = first_of(say(tmp_path, line, *give_up()[:2]))

    assert (finding.name, finding.culprits.ranks) == ("shape-mismatch", [])
