"""Ranks that come to one number with other calls, beside source that leaves a call out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

GAVE_UP = (
    "[rank{0}]:[E602 11:17:52.400612945 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=971, OpType={1}, NumelIn={2}, NumelOut={2}, "
    "Timeout(ms)=600000) ran for 600021 milliseconds before timing out."
)
SOURCES = {
    "block": [
        "        if batch.mask.sum() == 0:",
        "            continue            # nothing in it",
        "        counts = torch.stack([loss, n])",
        "        dist.all_reduce(counts)",
    ],
    "line": ["    if not samples: return", "", "    torch.distributed.all_reduce(stats, op=SUM)"],
    "listing": [
        "  88         if loss is None:",
        "  89             continue",
        "  90         work = dist.all_reduce(n_tok, async_op=True)",
    ],
    "quoted": [">     if not len(b):", ">         return None", ">     dist.all_reduce(n)"],
}


def wait(size: int = 4_000_000, op: str = "ALLREDUCE", usual: int = 2) -> list[str]:
    told = [GAVE_UP.format(rank, "ALLREDUCE", usual) for rank in (0, 1, 3)]
    return [told[0], GAVE_UP.format(2, op, size), *told[1:], "the others print the same as rank 0"]


@pytest.mark.parametrize("form", SOURCES)
def test_rank_that_leaves_the_call_out_by_the_source_is_named(tmp_path: Path, form: str) -> None:
    finding = first_of(say(tmp_path, *wait(), "the only one of 2 is", *SOURCES[form]))

    assert (finding.code, finding.culprits.ranks) == ("H127", [2])
    assert finding.victims.ranks == "0-1,3"
    assert "if " in finding.summary


def test_other_op_is_the_next_call_as_well(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *wait(900, "BROADCAST", 900), *SOURCES["block"]))

    assert (finding.code, finding.culprits.ranks) == ("H127", [2])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*wait()], id="no source"),
        pytest.param([*wait(), *SOURCES["block"][2:]], id="no condition"),
        pytest.param([*wait(3_000_000, usual=4_000_000), *SOURCES["block"]], id="data of a batch"),
        pytest.param([*wait(1), *SOURCES["block"]], id="fewer elements"),
        pytest.param(
            [*wait(), "    if rank != 0:", "        return", "    dist.all_reduce(x)"], id="by rank"
        ),
        pytest.param(
            [*wait(), "    if not b:", "        n = 0", "    dist.all_reduce(n)"], id="no jump"
        ),
        pytest.param(
            [*wait(), "    if not b:", "        return", "    dist.barrier()"], id="other call"
        ),
        pytest.param(
            [*wait(), "    if not b:", "        return", "def f(x):", "    dist.all_reduce(x)"],
            id="other function",
        ),
        pytest.param([*wait(), *SOURCES["block"], *SOURCES["line"]], id="two places"),
    ],
)
def test_other_source_leaves_it_a_mismatch(tmp_path: Path, lines: list[str]) -> None:
    assert first_of(say(tmp_path, *lines)).code in ("H106", "C211")


def test_source_alone_is_no_finding(tmp_path: Path) -> None:
    assert say(tmp_path, "step 3 loss 2.1", *SOURCES["block"]).findings == []
