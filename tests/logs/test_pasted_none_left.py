"""Ranks that did not come to a collective, and say that they had nothing for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

MISSING = "Not all ranks joining collective, sequence number: 9602\nmissing ranks: {2}\n"
NONE = [
    "[rank2]: step=722 labels kept: 0",
    "2026-02-02 22:41:19,377 rank=2 step=722 labels kept: 0",
    "[rank2]: WARNING 0 of 16 utterances left after max_len filter",
    "[rank2]: batch 78: valid tokens=0, lr=0.1",
    "rank 2: no valid boxes in this batch",
    "[rank2]: kept = 0/512",
    "[rank2]: zero samples remain after the filter",
]


def judge(report: Report) -> tuple[str, list[int]]:
    return first_of(report).name, first_of(report).culprits.ranks


@pytest.mark.parametrize("line", NONE)
def test_missing_rank_that_had_nothing_left_a_call_out(tmp_path: Path, line: str) -> None:
    assert judge(say(tmp_path, MISSING, line)) == ("skipped-collective", [2])


OTHER = {
    "some": ["[rank2]: labels kept: 512", "[rank2]: 12 of 16 utterances left after the filter"],
    "a share": ["[rank2]: labels kept: 0.93", "[rank2]: valid=0.5"],
    "another rank": ["[rank1]: labels kept: 0"],
    "all of them": [f"[rank{rank}]: labels kept: 0" for rank in range(4)],
    "no error": ["[rank2]: no samples were dropped", "[rank2]: 0 of 3 retries"],
}


@pytest.mark.parametrize("name", OTHER)
def test_rank_that_had_some_is_missing_only(tmp_path: Path, name: str) -> None:
    assert judge(say(tmp_path, MISSING, *OTHER[name])) == ("rank-never-joined", [2])
