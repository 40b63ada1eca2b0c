"""What tools say of a collective that differs, with the sizes or types of each rank beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Finding

HEAD = [
    "$ torchfrtrace --prefix nccl_trace_rank_ /scratch/fr/job-88120/",
    "loaded 4 files in 0.41s",
    "Collective sequence number: 1315 has errors",
    "collective: nccl:all_gather_into_tensor",
]
# How versions of the tool, and people who shorten it, name who differs.
NAMED = {
    "rank first": "error msg: Culprit rank {0}; Error type: {1}, Expected ...",
    "capital": "Culprit rank {0}; Error Type: {1}, Expected ...",
    "state first": "error msg: Error type: {1} / Culprit rank {0}; ",
    "comma": "error msg: Error type: {1}, culprit rank {0}",
    "brackets": "Error type: {1} (culprit ranks {0})",
}
STATES = {
    "COLLECTIVE_SIZE_MISMATCH": "shape-mismatch",
    "SIZE_OR_SYNTAX_MISMATCH": "shape-mismatch",
    "COLLECTIVE_DTYPE_MISMATCH": "dtype-mismatch",
    "COLLECTIVE_TYPE_MISMATCH": "op-mismatch",
}


def judge(folder: Path, *lines: str) -> tuple[str, list[int]]:
    finding: Finding = first_of(say(folder, *HEAD, *lines))
    return finding.name, finding.culprits.ranks


def size(odd: int, of: int = 4) -> list[str]:
    return [f"[[{4032 if rank == odd else 4096}, 512]]" for rank in range(of)]


def in_one_line(values: list[str]) -> list[str]:
    return [" input sizes  " + "  ".join(f"rank {rank}: {one}" for rank, one in enumerate(values))]


def with_equals(values: list[str]) -> list[str]:
    return ["input_sizes: " + ", ".join(f"rank{rank}={one}" for rank, one in enumerate(values))]


def in_rows(values: list[str]) -> list[str]:
    return ["input sizes:", *(f"  rank {rank}: {one}" for rank, one in enumerate(values))]


LISTS = [in_one_line, with_equals, in_rows]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("form", NAMED)
def test_rank_that_is_named_differs(tmp_path: Path, form: str, state: str) -> None:
    line = NAMED[form].format(3, state)
    line = line.replace(", Expected ...", "")

    assert judge(tmp_path, line) == (STATES[state], [3])


@pytest.mark.parametrize("listed", range(len(LISTS)))
def test_sizes_tell_that_the_first_rank_differs(tmp_path: Path, listed: int) -> None:
    named = "error msg: " + "; ".join(
        f"Error type: COLLECTIVE_SIZE_MISMATCH / Culprit rank {rank}" for rank in (1, 2, 3)
    )

    assert judge(tmp_path, named, *LISTS[listed](size(0))) == ("shape-mismatch", [0])


@pytest.mark.parametrize("listed", range(len(LISTS)))
def test_sizes_tell_who_differs_where_the_line_is_cut(tmp_path: Path, listed: int) -> None:
    named = "error msg: Culprit rank 3; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input siz"

    assert judge(tmp_path, named, *LISTS[listed](size(3))) == ("shape-mismatch", [3])


def test_sizes_of_two_sides_that_are_even_name_nobody(tmp_path: Path) -> None:
    named = "error msg: Culprit rank 3; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input siz"
    values = ["[[4, 2]]", "[[4, 2]]", "[[2, 2]]", "[[2, 2]]"]

    assert judge(tmp_path, named, *in_one_line(values)) == ("shape-mismatch", [])


def test_state_that_differs_names_nobody(tmp_path: Path) -> None:
    report = say(tmp_path, *HEAD, NAMED["state first"].format(3, "COLLECTIVE_STATE_MISMATCH"))

    assert not {rank for one in report.findings for rank in one.culprits.ranks}
