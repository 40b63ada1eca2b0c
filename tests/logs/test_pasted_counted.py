"""Processes that people or Ray tell of by numbers: whose rank each is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.pipeline import read_evidence

WAITS = """\
    wait (torch/distributed/distributed_c10d.py)  <- p2p_communication.py:331 _communicate
    send_forward_recv_backward (megatron/core/pipeline_parallel/p2p_communication.py:537)
    train_step (megatron/training/training.py:1245)"""
ELSEWHERE = """\
    wait (subprocess.py:1264)
    check_output (subprocess.py:421)
    ask (tools/probe_memory.py:44)
    train_step (megatron/training/training.py:1245)"""


@pytest.mark.parametrize("heading", ["[{0}] pid {1}", "[{0}], pid={1}:"])
@pytest.mark.parametrize("odd", [0, 2])
def test_stacks_below_counted_processes_are_of_their_ranks(
    tmp_path: Path, heading: str, odd: int
) -> None:
    lines = [
        f"{heading.format(rank, 61000 + rank)}\n{ELSEWHERE if rank == odd else WAITS}"
        for rank in range(4)
    ]
    finding = first_of(say(tmp_path, "hangs, four stages", *lines))

    assert (finding.code, finding.culprits.ranks) == ("H101", [odd])


RAY = "(RayTrainWorker pid={0}, ip=10.42.3.{1}) {2}"
CRASH = "*** SIGSEGV received at time=1795239194 on cpu 33 ***"


@pytest.mark.parametrize(
    ("first", "second", "ranks"),
    [
        ("INFO world_rank=6 step 4410", "INFO world_rank=2 step 4410", [6]),
        ("[05:31:02] INFO world_rank=6 loss 1.8", "[05:31:02] INFO world_rank=2 loss 1.8", [6]),
        ("lost the peer with world_rank=6", "lost the peer with world_rank=6", []),
    ],
)
def test_worker_of_ray_that_says_its_rank_is_that_rank(
    tmp_path: Path, first: str, second: str, ranks: list[int]
) -> None:
    lines = [
        RAY.format(8821, 17, CRASH),
        RAY.format(8821, 17, "Fatal Python error: Segmentation fault"),
        RAY.format(8821, 17, first),
        RAY.format(9017, 18, second),
    ]
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("C203", ranks)


RAISES = (
    "Traceback (most recent call last):",
    '  File "/job/loop.py", line 77, in train_loop_per_worker',
    "KeyError: 'n/a'",
)


@pytest.mark.parametrize(
    ("said", "ranks"),
    [
        ("Exception in rank 2, shard part-00417.parquet", [2]),
        ("[05:31:02] ERROR: Error on worker rank 2: bad row", [2]),
        ("Failure in rank2 (epoch 3)", [2]),
        ("Exception in rank 2 of the candidates list, rank 5 is fine", [2]),
        ("the Exception in rank 2 was seen here as well", []),
        ("Exceptions in ranks are logged to s3://b/run", []),
    ],
)
def test_worker_of_ray_that_says_in_which_rank_it_failed_is_that_rank(
    tmp_path: Path, said: str, ranks: list[int]
) -> None:
    lines = [RAY.format(2291, 9, line) for line in (said, *RAISES)]
    finding = first_of(say(tmp_path, RAY.format(4410, 7, "[rank 0] step 880"), *lines))

    assert (finding.code, finding.culprits.ranks) == ("C204", ranks)


def test_process_that_tells_of_failures_of_two_ranks_is_none_of_them(tmp_path: Path) -> None:
    lines = [f"(TorchTrainer pid=30) Exception in rank {rank}" for rank in (1, 2)]
    lines += [f"(TorchTrainer pid=30) {line}" for line in RAISES]

    assert first_of(say(tmp_path, *lines)).culprits.ranks == []


def test_rank_that_failed_is_found_far_inside_a_long_log(tmp_path: Path) -> None:
    steps = [RAY.format(4410, 7, f"[rank 0] step {step} loss 1.9") for step in range(4000)]
    lines = [RAY.format(2291, 9, line) for line in ("Exception in rank 2", *RAISES)]

    assert first_of(say(tmp_path, *steps, *lines, *steps)).culprits.ranks == [2]


def test_launcher_that_tells_of_a_rank_is_not_that_rank(tmp_path: Path) -> None:
    agent = "E0611 03:14:58.711000 30 torch/distributed/elastic/agent/server/api.py:869] {0}"
    other = "[rank5]:[E611 03:14:57.100 ProcessGroupNCCL.cpp:629] some NCCL operations have failed"
    (tmp_path / "paste.log").write_text(
        "\n".join([agent.format("Error on rank 3: it ended"), agent.format("x"), other, ""])
    )

    assert (30, 3) not in {
        (pid, rank)
        for (_, pid), ranks in read_evidence(tmp_path).logs.ranks_by_process.items()
        for rank in ranks
    }
