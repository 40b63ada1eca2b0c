"""Watchdogs of which one alone tells its group: far from its number, the others are of another."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

CALL = (
    "[rank{0}]:[E811 14:08:20.1004812 ProcessGroupNCCL.cpp:685] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn={2}, "
    "NumelOut={2}, Timeout(ms)=300000) ran for 300009 milliseconds before timing out."
)
GROUP = (
    "[rank{0}]:[E811 14:08:20.1007029 ProcessGroupNCCL.cpp:2252] [PG ID 1 PG GUID 1({2}) Rank {0}]"
    "  failure detected by watchdog at work sequence id: {1} PG status: last enqueued work: {1}, "
    "last completed work: 640"
)


def write(other: int, size: int, group: str = "mesh_tp") -> list[str]:
    return [CALL.format(0, 641, 4096), GROUP.format(0, 641, group), CALL.format(1, other, size)]


@pytest.mark.parametrize("other", [97, 5000])
@pytest.mark.parametrize("group", ["mesh_tp", "dp_cp"])
def test_number_that_is_far_is_of_another_group(tmp_path: Path, other: int, group: str) -> None:
    finding = first_of(say(tmp_path, *write(other, 8388608, group)))

    assert (finding.code, finding.culprits.ranks) == ("C211", [])
    assert all(f"allreduce {number}" in finding.summary for number in (641, other))
    assert "until their time limits: they are in different calls" in finding.summary


@pytest.mark.parametrize("other", [640, 642, 650])
def test_number_that_is_near_is_of_the_group_that_is_told(tmp_path: Path, other: int) -> None:
    finding = first_of(say(tmp_path, *write(other, 8388608)))

    assert finding.code in {"H101", "H102", "H106", "H127"}
