"""Ranks that lose a peer which had said that it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_near import blamed_of
from tests.logs.test_told import first_of, say

HOROVOD = [
    "[1,0]<stderr>:Traceback (most recent call last):",
    '[1,0]<stderr>:  File "/opt/horovod/torch/mpi_ops.py", line 600, in synchronize',
    (
        "[1,0]<stderr>:horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. "
        "This was caused by an exception on one of the ranks or an attempt to allreduce, allgather "
        "or broadcast a tensor after one of the ranks finished execution."
    ),
]
GLOO = [
    "[1,0]<stderr>:Traceback (most recent call last):",
    '[1,0]<stderr>:  File "/w/train.py", line 60, in step',
    (
        "[1,0]<stderr>:RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] "
        "Connection closed by peer [10.0.0.2]:8814"
    ),
]
SAID = [
    "epoch 3 done, 512 iterations, exiting",
    "finished 512 steps, leaving",
    "data exhausted after 512 batches",
]


@pytest.mark.parametrize("raised", [HOROVOD, GLOO], ids=["horovod", "gloo"])
@pytest.mark.parametrize("said", SAID)
def test_rank_that_left_before_a_peer_lost_it_is_named(
    tmp_path: Path, said: str, raised: list[str]
) -> None:
    finding = first_of(say(tmp_path, f"[1,2]<stdout>:{said}", *raised))

    assert (finding.code, finding.culprits.ranks) == ("H103", [2])
    assert finding.victims.ranks == "0"


LOST = (
    "[rank{0}]:[W708 13:02:41.4 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=64, "
    "addr=[n1]:51324, remote=[n0]:29500): Broken pipe"
)


def test_rank_that_left_while_others_take_steps_is_named(tmp_path: Path) -> None:
    steps = [f"[rank{rank}] step 80/96 loss 2.{rank}" for rank in (1, 2)]
    lines = ["[rank0] step 79 loss 2.1", "[rank0] no more batches, bye"]
    finding = first_of(say(tmp_path, *lines, *steps, *map(LOST.format, (1, 2))))

    assert (finding.code, finding.culprits.ranks) == ("H103", [0])


@pytest.mark.parametrize(
    "said",
    [
        ["[1,2]<stdout>:epoch 3 done, 512 iterations, next epoch"],
        ["[1,2]<stdout>:entering eval"],
        ["[1,0]<stdout>:data exhausted after 512 batches"],
        [f"[1,{rank}]<stdout>:data exhausted after 512 batches" for rank in range(3)],
        ["[1,2]<stdout>:data exhausted after 512 batches", "[1,2]<stderr>:KeyError: 'lr'"],
    ],
    ids=["goes on", "enters", "the same", "all", "raised"],
)
def test_peer_that_did_not_leave_by_itself_is_not_named_for_that(
    tmp_path: Path, said: list[str]
) -> None:
    report = say(tmp_path, *said, *HOROVOD)

    assert first_of(report).code != "H103"
    assert blamed_of(report)[0] <= {2}


def test_end_of_a_loop_alone_is_possible(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, "[1,2]<stdout>:end of training loop", *GLOO))

    assert finding.code != "H103" or finding.confidence == "possible"


def test_ranks_that_lose_the_store_at_the_end_of_a_job_are_well(tmp_path: Path) -> None:
    steps = [f"[rank{rank}] step 96/96 loss 2.{rank}" for rank in range(3)]
    lines = ["[rank0] Training finished.", "[rank0] finished 96 steps, exiting"]
    report = say(tmp_path, *steps, *lines, *map(LOST.format, (1, 2)))

    assert not [one for one in report.findings if one.code == "H103"]
