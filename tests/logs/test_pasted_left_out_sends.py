"""Ranks that say that they send nothing, while others wait in a receive."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

GLOO = [
    "{0}Traceback (most recent call last):",
    '{0}  File "/w/actor.py", line 40, in take',
    "{0}    dist.recv(self.out, src={1})",
    (
        "{0}RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] "
        "Timed out waiting 600000ms for recv operation to complete"
    ),
]
NCCL = [
    (
        "{0}[E1112 08:40:10.221004455 ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=18, OpType=RECV, NumelIn=4096, "
        "NumelOut=4096, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
    )
]
WORDS = [
    "buffer empty, skipping publish",
    "nothing to send this round",
    "no rollouts yet: not sending",
    "tick 12 skip send",
]


def judge(
    folder: Path,
    told: list[str],
    wait: list[str],
    *,
    src: str = "peer",
    prefix: str = "[rank{0}]: ",
) -> Report:
    steps = [f"{prefix.format(rank)}step 3 loss 2.{rank}" for rank in (0, 1, 2)]
    lines = [line.format(prefix.format(1), src) for line in wait]
    return say(folder, *steps, *told, *lines)


@pytest.mark.parametrize("prefix", ["[rank{0}]: ", "[rank {0}] ", "{0}: "])
@pytest.mark.parametrize("wait", [GLOO, NCCL], ids=["gloo", "nccl"])
@pytest.mark.parametrize("words", WORDS)
def test_rank_that_says_that_it_sends_nothing_is_named(
    tmp_path: Path, words: str, wait: list[str], prefix: str
) -> None:
    told = [f"{prefix.format(2)}{words}"] * 3
    finding = first_of(judge(tmp_path, told, wait, prefix=prefix))

    assert (finding.code, finding.culprits.ranks) == ("H110", [2])
    assert finding.victims.ranks == "1"


@pytest.mark.parametrize(
    ("told", "src"),
    [
        ([f"[rank2]: {WORDS[0]}"], "peer"),
        ([f"[rank2]: {WORDS[0]}"] * 3, "0"),
        ([f"[rank{rank}]: {WORDS[0]}" for rank in (0, 2, 0, 2)], "peer"),
        ([f"[rank1]: {WORDS[0]}"] * 3, "peer"),
        ([WORDS[0]] * 3, "peer"),
        (["[rank2]: sending 4 rollouts"] * 3, "peer"),
        (["[rank2]: the sender skips no batch"] * 3, "peer"),
    ],
    ids=["once", "of another one", "several", "who waits", "nobody", "it sends", "other words"],
)
def test_words_that_explain_no_receive_blame_nobody(
    tmp_path: Path, told: list[str], src: str
) -> None:
    report = judge(tmp_path, told, GLOO, src=src)

    assert "H110" not in {one.code for one in report.findings}


def test_rank_that_sends_nothing_explains_no_collective(tmp_path: Path) -> None:
    told = [f"[rank2]: {WORDS[0]}"] * 3
    report = judge(tmp_path, told, [line.replace("RECV", "ALLREDUCE") for line in NCCL])

    assert first_of(report).code == "C211"


ITEMS = [
    ("mb 5: empty after packing, nothing to send", "mb 5: waiting for activations from stage 2"),
    ("microbatch 5 has no rows, skip send", "microbatch 5 recv from 2"),
    ("mb=5: all rows masked, skip forward and send", "got mb=4 from 2, waiting for mb=5 from 2"),
    ("mb 5 is empty: not sending", "mb 4 received | mb 5 recv <- 2 ..."),
    ("micro-batch 5: skipping compute + send.", "micro-batch 5 receiving from rank 2"),
]


@pytest.mark.parametrize("prefix", ["[rank{0}]: ", "[rank {0}] ", "{0}: "])
@pytest.mark.parametrize("wait", [GLOO, NCCL], ids=["gloo", "nccl"])
@pytest.mark.parametrize(("said", "awaited"), ITEMS)
def test_micro_batch_that_was_left_out_and_is_waited_for_needs_no_second_one(
    tmp_path: Path, said: str, awaited: str, wait: list[str], prefix: str
) -> None:
    told = [prefix.format(2) + said, prefix.format(1) + awaited]
    finding = first_of(judge(tmp_path, told, wait, src="2", prefix=prefix))

    assert (finding.code, finding.culprits.ranks) == ("H110", [2])
    assert finding.victims.ranks == "1"


LEFT, AWAITED = "[rank2]: mb 5: nothing to send", "[rank1]: mb 5: waiting for act from 2"


@pytest.mark.parametrize(
    ("told", "src"),
    [
        ([LEFT, "[rank1]: mb 6: waiting for act from 2"], "2"),
        ([LEFT, "[rank1]: mb 5: waiting for act from 0"], "peer"),
        ([LEFT, AWAITED], "0"),
        ([LEFT, "[rank1]: mb 5: waiting for grad from 2"], "2"),
        ([LEFT, "[rank1]: mb 5: nothing to send", AWAITED], "2"),
        ([LEFT, "[rank2]: mb 5: sent", AWAITED], "2"),
        ([LEFT, "[rank2]: mb 0: sent", "[rank2]: mb 1: sent", AWAITED], "2"),
        ([LEFT, "[rank1]: mb 5 received from 2"], "2"),
        ([LEFT, "[rank1]: mb 5 send to 0"], "2"),
        ([LEFT, "[rank1]: step 4 begins"], "2"),
        (["[rank2]: mb 5: nothing to send yet", AWAITED], "2"),
        (["[rank2]: mb 5: skip forward and send zeros", AWAITED], "2"),
        (["[rank2]: mb 5: skip recompute, send to 1", AWAITED], "2"),
        (["[rank2]: mb 5: skip logging", AWAITED], "2"),
        ([LEFT, LEFT.replace("rank2", "rank0"), AWAITED], "2"),
        ([LEFT, "[rank1]: mb 5: waiting"], "peer"),
    ],
    ids=[
        *("another item", "another peer", "another source", "other way", "both", "sent after all"),
        *("next round", "has it", "sends it", "no item", "not yet", "zeros", "recompute"),
        *("logging", "several", "no neighbour"),
    ],
)
def test_micro_batch_that_was_left_out_explains_no_other_wait(
    tmp_path: Path, told: list[str], src: str
) -> None:
    report = judge(tmp_path, told, GLOO, src=src)

    assert "H110" not in {one.code for one in report.findings}
