"""A barrier that one rank alone came to, beside the calls of a step that the others are in."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

WAIT = (
    "[rank{0}]:[E312 02:41:07.553810226 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut={3}, "
    "Timeout(ms)=600000) ran for 600022 milliseconds before timing out."
)
HEAD = [
    "Collective sequence number: 907 has errors",
    "internal record id: 906",
    "group info: 0:default_pg",
    "collective: nccl:{0}",
    "input sizes: [[1]]",
    "world size: 4",
    "expected ranks: {{0, 1, 2, 3}}",
    "collective state: started",
]
NAMED = (
    "Culprit rank {0}; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: '{1}' does "
    "not match found collective type: '{2}'"
)
STACK = [
    "collective stack trace:",
    " barrier at /opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:4551",
    "wrapper at /opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py:81",
    "save_checkpoint at /home/mk/ft/ckpt.py:58",
    "train at /home/mk/ft/finetune.py:211",
    "<module> at /home/mk/ft/finetune.py:264",
]


def waits(odd: int, op: str, size: int, others: str = "ALLREDUCE") -> list[str]:
    calls = dict.fromkeys(range(4), (others, 26217472)) | {odd: (op, size)}
    return [WAIT.format(rank, 907, *call) for rank, call in calls.items()]


def compare(first: str, other: str, *ranks: int) -> list[str]:
    told = ", ".join(NAMED.format(rank, first, other) for rank in ranks)
    return [*(line.format(first) for line in HEAD), f"error msg: {told}", *STACK]


@pytest.mark.parametrize("others", ["ALLREDUCE", "_REDUCE_SCATTER_BASE", "_ALLGATHER_BASE"])
@pytest.mark.parametrize("shown", ["watchdogs", "torchfrtrace", "both"])
def test_barrier_of_the_first_rank_alone_is_a_call_too_many(
    tmp_path: Path, shown: str, others: str
) -> None:
    names = {"ALLREDUCE": "all_reduce", "_ALLGATHER_BASE": "_all_gather_base"}
    tool = compare("all_reduce_barrier", names.get(others, "_reduce_scatter_base"), 1, 2, 3)
    lines = waits(0, "ALLREDUCE", 1, others) * (shown != "torchfrtrace")

    found = first_of(say(tmp_path, *lines, *tool * (shown != "watchdogs")))

    assert (found.code, found.culprits.ranks) == ("H102", [0])
    assert "barrier" in found.summary


def test_place_of_the_call_that_the_tool_shows_is_told(tmp_path: Path) -> None:
    found = first_of(say(tmp_path, *compare("all_reduce_barrier", "all_reduce", 1, 2, 3)))

    places = [(one.file, one.line, one.function) for one in found.where]
    assert places[0] == ("/home/mk/ft/ckpt.py", 58, "save_checkpoint")


@pytest.mark.parametrize(
    ("lines", "code", "rank"),
    [
        (waits(2, "ALLREDUCE", 1), "H106", 2),
        (waits(0, "BROADCAST", 26217472), "H105", 0),
        (waits(0, "ALLREDUCE", 4096), "H106", 0),
        (compare("broadcast", "all_reduce", 1, 2, 3), "H105", 0),
        (compare("all_reduce", "all_reduce_barrier", 2), "H105", 2),
    ],
    ids=["other rank", "same size", "small", "other op", "named"],
)
def test_other_calls_are_of_another_op_or_size(
    tmp_path: Path, lines: list[str], code: str, rank: int
) -> None:
    found = first_of(say(tmp_path, *lines))

    assert (found.code, found.culprits.ranks) == (code, [rank])
