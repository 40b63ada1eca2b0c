"""What is not the fault of the rank, host or job that prints it: other processes, and ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

OOM = (
    "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 2 "
    "has a total capacity of 79.11 GiB of which 1.02 GiB is free. {others}{own}Of the allocated "
    "memory 52.11 GiB is allocated by PyTorch, and 1.77 GiB is reserved by PyTorch but unallocated."
)
OWN = "Including non-PyTorch memory, this process has 55.69 GiB memory in use. "
OTHER = "Process 3310977 has {0} memory in use. "


def run_out(rank: int = 2, asked: str = "1.96 GiB", held: str = "22.38 GiB", own: str = OWN) -> str:
    return OOM.format(rank=rank, asked=asked, others=OTHER.format(held) if held else "", own=own)


@pytest.mark.parametrize("held", ["22.38 GiB", "2100.00 MiB", "1.96 GiB"])
def test_where_another_process_holds_what_is_lacking_it_is_told_beside_the_rank(
    tmp_path: Path, held: str
) -> None:
    found = first_of(say(tmp_path, run_out(held=held), "[rank0]: step 12 loss 2.3"))

    assert (found.code, found.culprits.ranks) == ("C206", [2])
    assert f"process 3310977 holds {held} of that device" in found.summary
    assert any("ps -o user,lstart,cmd -p 3310977" in one for one in found.remedies)


@pytest.mark.parametrize(
    "line",
    [
        run_out(held="310.00 MiB"),
        run_out(held=""),
        # In a container, the process itself has another number for the driver.
        run_out(held="77.38 GiB", own=""),
    ],
)
def test_where_no_other_process_holds_enough_the_rank_is_named(tmp_path: Path, line: str) -> None:
    found = first_of(say(tmp_path, line, "[rank0]: step 12 loss 2.3"))

    assert (found.code, found.culprits.ranks) == ("C206", [2])


def test_another_rank_on_the_device_is_no_stranger(tmp_path: Path) -> None:
    found = first_of(say(tmp_path, "rank 0 is pid 3310977", run_out()))

    assert "process 3310977" not in found.summary


# ------------------------------------------------------------------------------ jobs that are over

LOST = (
    (
        "[rank5]:[W1116 04:52:44.118530917 TCPStore.cpp:125] [c10d] recvValue failed on "
        "SocketImpl(fd=92, addr=[n1]:51804, remote=[n0]:29500): failed to recv, got 0 bytes"
    ),
    (
        "[rank5]:[W1116 04:52:44.121007518 ProcessGroupNCCL.cpp:1662] [PG ID 0 Rank 5] Failed "
        'to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down '
        "too early), with error: failed to recv, got 0 bytes"
    ),
)
DONE = [
    "[titan] 2026-11-16 04:52:43,509 - root - INFO - Training completed",
    "INFO:train:training finished in 3:12:05",
    "`Trainer.fit` stopped: `max_steps=10000` reached.",
    "[2026-11-16 04:52:43] Training is done, exiting",
    "[exiting program at iteration 10000] datetime: 2026-11-16 04:52:43",
    "[after training is done] datetime: 2026-11-16 04:52:43",
]


@pytest.mark.parametrize("done", DONE)
def test_warnings_of_a_job_that_is_done_are_no_failure(tmp_path: Path, done: str) -> None:
    assert not say(tmp_path, "step: 10000 loss: 2.7", done, *LOST).findings


def test_the_same_warnings_of_a_job_that_was_not_done_are_one(tmp_path: Path) -> None:
    assert first_of(say(tmp_path, "step: 9000 loss: 2.7", *LOST)).code == "C209"


@pytest.mark.parametrize(
    "line",
    [
        (
            "[rank5]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] "
            "Connection closed by peer [10.8.0.12]:31718"
        ),
        (
            "[rank5]: torch.distributed.DistBackendError: NCCL error in: "
            "ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error"
        ),
    ],
)
def test_an_error_after_the_last_step_is_one(tmp_path: Path, line: str) -> None:
    assert first_of(say(tmp_path, DONE[0], *LOST, line)).code == "C209"


# -------------------------------------------------------------------------------------------- pods


def test_a_pod_that_two_commands_tell_of_is_one(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        "$ kubectl get pods",
        "NAME                READY   STATUS      RESTARTS   AGE",
        "mt5-ft-master-0     0/1     Error       0          97m",
        "mt5-ft-worker-1     0/1     OOMKilled   0          97m",
        "$ kubectl describe pod mt5-ft-worker-1",
        "Name:             mt5-ft-worker-1",
        "    State:          Terminated",
        "      Reason:       OOMKilled",
        "      Exit Code:    137",
    )

    found = [one for one in report.findings if one.code == "C202"]
    assert [one.culprits.nodes for one in found] == [["mt5-ft-worker-1"]]
