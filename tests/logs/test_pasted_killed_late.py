"""Processes that something ended after they had given up waiting: that did not stop the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

GAVE_UP = {
    "dump": "[rank40]:[E825 01:18:30.4475003 PGNCCL.cpp:1746] [PG ID 0 Rank 40] "
    "Received a dump signal due to a collective timeout from  rank 17 and we will try our best",
    "watchdog": "[rank40]:[E825 01:18:30.4475003 NCCL.cpp:685] [Rank 40] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, "
    "Timeout(ms)=600000) ran for 600031 milliseconds before timing out.",
}
KILLED = ["srun: error: a3-17: tasks 40-47: Killed", "srun: error: a3-17: task 40: Killed"]


def blamed(folder: Path, *lines: str) -> list[int]:
    return [
        rank for one in say(folder, *lines).findings if one.code == "C201"
        for rank in one.culprits.ranks
    ]  # fmt: skip


@pytest.mark.parametrize("words", GAVE_UP)
@pytest.mark.parametrize("killed", KILLED)
def test_end_after_a_wait_blames_nobody(tmp_path: Path, words: str, killed: str) -> None:
    assert blamed(tmp_path, GAVE_UP[words], killed) == []


@pytest.mark.parametrize("words", GAVE_UP)
@pytest.mark.parametrize("killed", KILLED)
def test_end_before_others_wait_is_the_cause(tmp_path: Path, words: str, killed: str) -> None:
    other = GAVE_UP[words].replace("ank40", "ank3").replace("ank 40", "ank 3")

    assert 40 in blamed(tmp_path, killed, other)
    assert 40 in blamed(tmp_path, other, killed)
