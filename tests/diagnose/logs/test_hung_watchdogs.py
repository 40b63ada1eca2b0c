"""C211 by the watchdog of a rank that did not move itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

HEAD = "[rank{0}]:[E310 08:15:00.1{0} ProcessGroupNCCL.cpp:1394] [PG ID 0 PG GUID 0 Rank {0}] "
STUCK = [
    (
        "Heartbeat monitor timed out! Process will be terminated after dumping debug info. "
        "workMetaList_.size()=2"
    ),
    (
        "ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress in "
        "monitoring enqueued collectives. This typically indicates a NCCL/CUDA API hang."
    ),
]
DUMP = "Received a dump signal due to a collective timeout from  rank {0} and we will try our"
CAUGHT = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=8,"
    " NumelOut=8, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
)


@pytest.mark.parametrize("told", STUCK)
@pytest.mark.parametrize("rank", [0, 3])
def test_rank_that_is_heard_of_alone_is_not_blamed(tmp_path: Path, told: str, rank: int) -> None:
    finding = first_of(say(tmp_path, HEAD.format(rank) + told))

    assert (finding.code, finding.culprits.ranks) == ("C211", [])
    assert finding.confidence.value == "possible"
    assert f"rank {rank}" in finding.summary
    assert f"of rank {rank}" in finding.remedies[0]


@pytest.mark.parametrize("told", STUCK)
@pytest.mark.parametrize("peer", [DUMP.format(3), CAUGHT])
def test_rank_that_hangs_beside_others_that_wait_is_named(
    tmp_path: Path, told: str, peer: str
) -> None:
    finding = first_of(say(tmp_path, HEAD.format(3) + told, HEAD.format(1) + peer))

    assert (finding.code, finding.culprits.ranks) == ("C211", [3])
    assert finding.confidence.value == "likely"


def test_of_several_that_hang_none_is_named(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *(HEAD.format(rank) + STUCK[0] for rank in (1, 2))))

    assert (finding.code, finding.culprits.ranks) == ("C211", [])
