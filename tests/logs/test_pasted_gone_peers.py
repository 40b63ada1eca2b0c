"""Ranks that lose a peer, or its store, which ran out of data before them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

STORE = (
    "[rank{0}]:[W811 09:12:44.118231902 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl("
    "fd=71, addr=[n1]:40112, remote=[n1]:29500): Broken pipe"
)
GLOO = (
    "[rank{0}]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection "
    "closed by peer [10.0.0.4]:31022"
)
LOST = {"store": STORE, "gloo": GLOO}
ENDS = [
    "[rank{0}] INFO loader exhausted at step {1}",
    "[rank{0}] step {1}: no more batches, leaving",
    "[rank{0}]: epoch 3 step {1} dataset exhausted",
]


def run(
    end: str, lost: str, *, leaver: int = 0, last: int = 61, most: int = 62, done: bool = False
) -> list[str]:
    others = [rank for rank in range(3) if rank != leaver]
    lines = [f"[rank{rank}] INFO step {last} loss 2.1" for rank in range(3)]
    lines.append(end.format(leaver, last))
    lines += [f"[rank{rank}] INFO step {most} loss 2.1" for rank in others]
    lines += [ENDS[0].format(rank, most) for rank in others if done]
    return lines + [lost.format(rank) for rank in others]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("leaver", [0, 2])
def test_rank_that_left_while_others_went_on(
    tmp_path: Path, end: str, lost: str, leaver: int
) -> None:
    finding = first_of(say(tmp_path, *run(end, LOST[lost], leaver=leaver)))

    assert (finding.code, finding.culprits.ranks) == ("H103", [leaver])


FAILED = [
    "[rank0]: Traceback (most recent call last):",
    '[rank0]:   File "train.py", line 9, in <module>',
    "[rank0]: ValueError: bad shape",
]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(run(ENDS[0], STORE, most=61), id="as far"),
        pytest.param(run(ENDS[0], STORE, done=True), id="all end"),
        pytest.param(run("[rank{0}] INFO step {1} saved", STORE), id="no end"),
        pytest.param([*run(ENDS[0], STORE)[:-2]], id="nothing lost"),
        pytest.param([*run(ENDS[0], STORE), "INFO Training finished."], id="done"),
        pytest.param([*FAILED, *run(ENDS[0], STORE)], id="failed"),
        pytest.param([*run(ENDS[0], STORE)[4:], ENDS[0].format(0, 61)], id="behind"),
    ],
)
def test_ranks_that_did_not_leave_early(tmp_path: Path, lines: list[str]) -> None:
    assert all(one.code != "H103" for one in say(tmp_path, *lines).findings)
