"""Ranks that leave while others wait for them, by their stacks or their own last words."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say
from tests.logs.test_who import WAIT

OLD = (
    "[E ProcessGroupNCCL.cpp:474] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=412, OpType=ALLREDUCE, NumelIn=512, NumelOut=512, Timeout(ms)=600000) ran "
    "for 600203 milliseconds before timing out."
)
DESTROY = [
    'Thread 881 (idle): "MainThread"',
    "    destroy_process_group (torch/distributed/distributed_c10d.py:2144)",
    "    cleanup (train.py:90)",
    "    <module> (train.py:201)",
]
FAULT = [
    "Current thread 0x00007f2a51b2a740 (most recent call first):",
    '  File "/opt/torch/distributed/distributed_c10d.py", line 2144 in destroy_process_group',
    '  File "/home/me/train.py", line 201 in <module>',
]
SHUTDOWN = [
    'Thread 881 (idle): "MainThread"',
    "    _wait_for_tstate_lock (threading.py:1116)",
    "    join (threading.py:1096)",
    "    _shutdown (threading.py:1567)",
]
INSIDE = [
    'Thread 881 (active): "MainThread"',
    "    collate (data.py:90)",
    "    <module> (train.py:201)",
]
TRACE = [
    "[rank3]: Traceback (most recent call last):",
    '[rank3]:   File "train.py", line 9, in <module>',
    "[rank3]:     step()",
    "[rank3]: ValueError: bad shape",
]
HEADS = ["py-spy on rank 3 before the timeout:", "rank 3:", "$ py-spy dump --pid 881  # rank 3"]


def show(folder: Path, *lines: str) -> tuple[str, list[int]]:
    finding = first_of(say(folder, *lines))
    return finding.code, finding.culprits.ranks


@pytest.mark.parametrize("wait", [WAIT, OLD], ids=["signed", "old"])
@pytest.mark.parametrize("stack", [DESTROY, FAULT, SHUTDOWN], ids=["destroy", "fault", "exit"])
@pytest.mark.parametrize("head", HEADS)
def test_rank_that_leaves_is_named_where_others_waited(
    tmp_path: Path, head: str, stack: list[str], wait: str
) -> None:
    waits = [wait.format(rank) for rank in (0, 1, 2)]

    assert show(tmp_path, *waits, head, *stack) == ("H103", [3])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([HEADS[1], *INSIDE], id="elsewhere"),
        pytest.param([*TRACE, HEADS[1], *DESTROY], id="it raised"),
        pytest.param([WAIT.format(3), HEADS[1], *DESTROY], id="it waited, too"),
        pytest.param([*DESTROY], id="of nobody"),
    ],
)
def test_rank_that_leaves_for_another_reason_is_no_early_one(
    tmp_path: Path, lines: list[str]
) -> None:
    waits = [WAIT.format(rank) for rank in (0, 1, 2)]

    assert show(tmp_path, *waits, *lines) not in (("H103", [3]), ("H103", [0]))


WORDS = [
    "finished 15616 batches, 1999k samples, saving meters, bye",
    "epoch 2 done after 811 batches",
    "completed all 97 shards",
    "loader exhausted, leaving the training loop",
]
PREFIXES = ["rank: {0} ", "rank={0} ", "[rank{0}]: ", "{0}: ", "(rank {0}) "]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("words", WORDS)
def test_last_words_of_a_rank_tell_that_it_leaves(tmp_path: Path, words: str, prefix: str) -> None:
    steps = [f"{prefix.format(rank)}it 15616 loss 0.61{rank}" for rank in range(3)]
    waits = [OLD.format(rank) for rank in (0, 1, 2)]

    assert show(tmp_path, *steps, f"{prefix.format(3)}{words}", *waits) == ("H103", [3])
    steps = [f"{prefix.format(rank)}{words}" for rank in range(4)]
    assert show(tmp_path, *steps, *waits)[0] != "H103"


LAST_WORDS = [
    "INFO epoch 4 | 902 steps; loop finished",
    "Loop is done, nothing left to read",
    "finished iterating after step 902",
    "INFO the loop has ended at step 902",
    "destroying process group",
    "INFO - tearing down the NCCL process group",
    "calling dist.destroy_process_group()",
    "Cleaning up distributed process groups ...",
    "shutting down process group",
    "left the process group, bye",
]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("words", LAST_WORDS)
def test_end_of_a_loop_or_of_groups_on_one_rank_alone_is_early(
    tmp_path: Path, words: str, prefix: str
) -> None:
    steps = [f"{prefix.format(rank)}it 902 loss 0.61{rank}" for rank in range(3)]
    waits = [WAIT.format(rank) for rank in (0, 1, 2)]

    assert show(tmp_path, *steps, f"{prefix.format(3)}{words}", *waits) == ("H103", [3])
    assert show(tmp_path, *steps, *waits, f"{prefix.format(3)}{words}")[0] != "H103"
    steps = [f"{prefix.format(rank)}{words}" for rank in range(4)]
    assert show(tmp_path, *steps, *waits)[0] != "H103"


@pytest.mark.parametrize("words", LAST_WORDS)
def test_end_on_a_rank_that_failed_or_prints_for_all_is_not_early(
    tmp_path: Path, words: str
) -> None:
    waits = [WAIT.format(rank) for rank in (0, 1, 2)]

    assert show(tmp_path, *TRACE, f"[rank3]: {words}", *waits) == ("C204", [3])
    alone = ["[rank0]: it 902 loss 0.61", f"[rank0]: {words}"]
    assert show(tmp_path, *alone, *(WAIT.format(rank) for rank in (1, 2, 3)))[0] != "H103"


@pytest.mark.parametrize(
    "words",
    [
        "INFO event loop finished",
        "validation loop is done",
        "WARNING: destroy_process_group() was not called before program exit",
        "Destroyed 1communicators on CUDA device 3",
        "creating process group 4",
        "leaving warmup of process groups",
    ],
)
def test_words_about_other_loops_and_groups_are_no_end(tmp_path: Path, words: str) -> None:
    steps = [f"[rank{rank}]: it 902 loss 0.61{rank}" for rank in range(3)]
    waits = [WAIT.format(rank) for rank in (0, 1, 2)]

    assert show(tmp_path, *steps, f"[rank3]: {words}", *waits)[0] != "H103"
