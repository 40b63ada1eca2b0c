"""How many micro-batches stages say that a step has, beside who waits, and look-alikes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

FORMS = {
    "stage": "[pp stage {0}] 1f1b, num_microbatches={1}",
    "prefix": "[rank{0}]: schedule=GPipe n_microbatches: {1}",
    "task": "{0}: [rank {0}] pipeline built, {1} micro-batches per step",
    "named": "rank {0}: num_micro_batches = {1}",
    "megatron": "[default{0}]:[rank {0}] setting number of microbatches to constant {1}",
}
STEP = "forward_backward (llm/pipe.py:{0})\n    train_step (llm/loop.py:70)"
RECV = f"""\
    wait (torch/distributed/distributed_c10d.py:510)
    recv_forward (llm/p2p.py:31)
    {STEP.format(120)}"""
BACK = f"""\
    irecv (torch/distributed/distributed_c10d.py:2213)
    recv_backward (llm/p2p.py:44)
    {STEP.format(141)}"""
NORM = """\
    all_reduce (torch/distributed/distributed_c10d.py:2806)
    total_norm (llm/norm.py:18)
    train_step (llm/loop.py:74)"""
DATA = """\
    read (llm/shards.py:55)
    next_batch (llm/data.py:21)
    train_step (llm/loop.py:66)"""
WATCHDOG = (
    "[rank{0}]:[E917 08:12:20.774 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=4194304, NumelOut=4194304, "
    "Timeout(ms)=600000) ran for 600071 milliseconds before timing out."
)


def paste(folder: Path, form: str, counts: list[int], stacks: list[str], *more: str) -> Report:
    told = [FORMS[form].format(rank, count) for rank, count in enumerate(counts)]
    shown = [f"=== rank {rank} ===\n{stack}" for rank, stack in enumerate(stacks)]
    return say(folder, *told, "", *shown, "", *more)


@pytest.mark.parametrize("form", FORMS)
def test_stage_with_fewer_micro_batches_that_went_on_is_named(tmp_path: Path, form: str) -> None:
    finding = first_of(paste(tmp_path, form, [8, 8, 7, 8], [BACK, BACK, NORM, RECV]))

    assert (finding.name, finding.culprits.ranks) == ("p2p-unmatched", [2])
    assert finding.confidence == "likely"
    assert finding.details["pair"] == [3, 2]


@pytest.mark.parametrize("form", FORMS)
def test_stage_with_more_micro_batches_that_waits_alone_is_named(tmp_path: Path, form: str) -> None:
    finding = first_of(paste(tmp_path, form, [8, 8, 9, 8], [NORM, NORM, RECV, NORM]))

    assert (finding.name, finding.culprits.ranks) == ("p2p-unmatched", [2])
    assert finding.details["waiting_rank"] == 2


def test_watchdogs_tell_who_waits_in_what(tmp_path: Path) -> None:
    waits = [WATCHDOG.format(rank, 8, "RECV") for rank in (0, 1, 3)]
    own = WATCHDOG.format(2, 41, "ALLREDUCE")
    finding = first_of(paste(tmp_path, "prefix", [8, 8, 7, 8], [], *waits, own))

    assert (finding.name, finding.culprits.ranks) == ("p2p-unmatched", [2])
    assert finding.confidence == "likely"


def test_stage_of_which_nothing_is_shown_is_possible_at_most(tmp_path: Path) -> None:
    waits = [WATCHDOG.format(rank, 8, "RECV") for rank in (1, 3)]
    report = paste(tmp_path, "prefix", [8, 8, 7, 8], [], *waits)
    named = {one.name: one for one in report.findings if one.culprits.ranks}

    assert named["p2p-unmatched"].culprits.ranks == [2]
    assert named["p2p-unmatched"].confidence == "possible"


@pytest.mark.parametrize(
    ("counts", "stacks"),
    {
        "all alike": ([8, 8, 8, 8], [BACK, BACK, NORM, RECV]),
        "two stages": ([8, 7], [BACK, NORM]),
        "two sides": ([8, 8, 7, 7], [BACK, BACK, NORM, RECV]),
        "nobody in a transfer": ([8, 8, 7, 8], [NORM, NORM, DATA, NORM]),
        "odd one alone waits": ([8, 8, 7, 8], [NORM, NORM, RECV, NORM]),
    }.values(),
)
def test_numbers_alone_blame_nobody(tmp_path: Path, counts: list[int], stacks: list[str]) -> None:
    report = paste(tmp_path, "stage", counts, stacks)

    assert "micro-batches" not in " ".join(one.summary for one in report.findings)


def test_numbers_that_change_from_step_to_step_are_of_different_steps(tmp_path: Path) -> None:
    later = [FORMS["prefix"].format(rank, 16) for rank in (0, 1, 3)]
    report = paste(tmp_path, "prefix", [8] * 4, [BACK, BACK, NORM, RECV], *later)

    assert "micro-batches" not in " ".join(one.summary for one in report.findings)
