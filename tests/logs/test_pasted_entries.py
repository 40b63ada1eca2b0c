"""Entries of flight recorders that somebody printed as a table."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

BARS = (
    " rank | pg | coll_seq | op | state | t_started |",
    "  {0} | tp_2 | {1} | nccl:{2} | {3} | - |",
)
COMMAS = ("rank,pg_name,collective_seq_id,profiling_name,state", "{0},tp_2,{1},nccl:{2},{3}")
BLANKS = ("rank pg seq_id op state", "{0} tp_2 {1} {2} {3}")


def entries(form: tuple[str, str], behind: int, op: str = "all_gather") -> list[str]:
    """Print the last two entries of each rank; one is where all but it have been."""
    lines = [form[0]]
    for rank in range(16, 22):
        state = "scheduled" if rank == 18 else "started"
        told = [(812, "all_gather", "completed"), (813, "all_reduce", state)]
        if rank == behind:
            told = [(811, "all_reduce", "completed"), (812, "all_gather", "completed")]
        elif rank == behind + 100:
            told[1] = (813, op, state)
        lines += [form[1].format(rank, *one) for one in told]
    return lines


@pytest.mark.parametrize("form", [BARS, COMMAS, BLANKS])
def test_rank_whose_last_entry_is_behind_did_not_come(
    tmp_path: Path, form: tuple[str, str]
) -> None:
    finding = first_of(say(tmp_path, *entries(form, behind=21)))

    assert (finding.code, finding.culprits.ranks) == ("H101", [21])


def test_rank_whose_last_entry_is_another_op_is_named(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *entries(BARS, behind=17 - 100, op="broadcast")))

    assert (finding.code, finding.culprits.ranks) == ("H105", [17])


def test_entries_that_are_alike_name_nobody(tmp_path: Path) -> None:
    report = say(tmp_path, *entries(BARS, behind=-1))

    assert not any(one.culprits.ranks for one in report.findings)
