"""Stacks below a heading that names one rank, and by numbers alone those that have the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.ranks import parse_ranks

BUSY = [
    'Thread 811 (active): "MainThread"',
    "    _engine_run_backward (torch/autograd/graph.py:{0})",
    "    backward (torch/autograd/__init__.py:{1})",
    "    fit (learn.py:44)",
    "    main (learn.py:90)",
]
GONE = [
    'Thread 814 (active): "MainThread"',
    "    destroy_process_group (torch/distributed/distributed_c10d.py:2146)",
    "    close (learn.py:12)",
    "    main (learn.py:95)",
]


@pytest.mark.parametrize(
    "head",
    [
        "rank 0, same for 1 and 2:",
        "rank 0 (same for ranks 1, 2):",
        "rank 0 (1 and 2 the same):",
        "## py-spy, rank 0, the same on 1-2:",
        "rank 0, ranks 1 and 2 are identical:",
        "$ py-spy dump --pid 811   # RANK 0, RANKS 1-2 look the same",
        "$ py-spy dump --pid 811   # rank 0, and ranks 1, 2 have the same stack",
    ],
)
@pytest.mark.parametrize("lines", [(823, 347), (768, 289)])
def test_the_rank_that_tears_down_is_named_beside_those_that_are_alike(
    tmp_path: Path, head: str, lines: tuple[int, int]
) -> None:
    busy = [row.format(*lines) for row in BUSY]
    found = first_of(say(tmp_path, "[1,0]<stdout>:it 31", head, *busy, "rank 3:", *GONE))

    assert (found.code, found.culprits.ranks) == ("H103", [3])
    assert found.victims.ranks == "0-2"


@pytest.mark.parametrize(
    "head",
    [
        "rank 0, not the same for 1 and 2:",
        "rank 0 waits for 1 and 2:",
        "it is rank 0 or 1:",
        "$ py-spy dump --pid 811   # rank 0, ranks 1 and 2 are not the same",
        "$ py-spy dump --pid 811   # rank 0, rank 1 is nearly identical, rank 2 is gone",
        "$ py-spy dump --pid 811   # rank 0, ranks 1 and 2 are the same as an hour ago",
        "$ py-spy dump --pid 811   # rank 0, ranks 1 and 2 have the same seed",
        "$ py-spy dump --pid 811   # rank 0, ranks 1 and 2",
    ],
)
def test_ranks_that_are_not_alike_are_not_taken_to_be(tmp_path: Path, head: str) -> None:
    busy = [row.format(823, 347) for row in BUSY]
    report = say(tmp_path, head, *busy, "rank 3:", *GONE)

    assert not any(parse_ranks(one.victims.ranks) & {1, 2} for one in report.findings)


@pytest.mark.parametrize(
    "head",
    [
        "ranks 0-2, all three the same:",
        "ranks 0, 1 and 2, identical:",
        "ranks 0-2 all look alike:",
        "rank 0, 1, 2 are identical:",
    ],
)
def test_heading_of_several_ranks_that_are_alike(tmp_path: Path, head: str) -> None:
    busy = [row.format(823, 347) for row in BUSY]
    first = ["rank 3:", *GONE] if head.startswith("ranks") else []
    found = say(tmp_path, *first, head, *busy, *([] if first else ["rank 3:", *GONE])).findings

    assert (found[0].code, found[0].culprits.ranks) == ("H103", [3])


@pytest.mark.parametrize(
    "head",
    [
        "# py-spy on rank 3 at 15:39, ranks 1 and 2 are in all_gather like 0",
        "py-spy of rank 3, the others wait in an all_reduce",
        "gdb on rank 3; ranks 0-2 sit in a barrier",
    ],
)
def test_heading_that_says_where_the_others_are(tmp_path: Path, head: str) -> None:
    found = say(
        tmp_path, head, *GONE, "ranks 0-2:", *[row.format(823, 347) for row in BUSY]
    ).findings

    assert (found[0].code, found[0].culprits.ranks) == ("H103", [3])


def test_heading_that_says_that_others_are_the_same_is_of_all(tmp_path: Path) -> None:
    busy = [row.format(823, 347) for row in BUSY]
    lines = ["py-spy rank 0, ranks 1 and 2 are identical", *busy, "rank 3:", *GONE]
    found = say(tmp_path, *lines).findings

    assert found[0].victims.ranks == "0-2"


@pytest.mark.parametrize(
    "head",
    [
        "14:31 | ranks 0-2 (identical)",
        "## ranks 0, 1, 2 - all alike",
        "== 09:12:44 == ranks 0 1 2, exactly the same",
        "[ranks 0, 1 and 2, same stack]",
        "14:31 ranks 0-2:",
    ],
)
def test_what_is_said_of_ranks_right_above_a_stack_is_its_heading(
    tmp_path: Path, head: str
) -> None:
    busy = [row.format(823, 347) for row in BUSY]
    found = first_of(say(tmp_path, "14:31 | rank 3", *GONE, head, *busy))

    assert (found.code, found.culprits.ranks) == ("H103", [3])
    assert found.victims.ranks == "0-2"


@pytest.mark.parametrize(
    "between", [["rank 3:"], ["", "rank 3:"], ["== rank 3 (pid 814)"], ["Process 814 (rank 3): x"]]
)
def test_what_is_said_of_ranks_below_a_stack_is_of_that_stack(
    tmp_path: Path, between: list[str]
) -> None:
    busy = [row.format(823, 347) for row in BUSY]
    said = ["09:12:44 ranks 1, 2 (all the same)", *between]
    found = first_of(say(tmp_path, "rank 0:", *busy, *said, *GONE))

    assert (found.code, found.culprits.ranks) == ("H103", [3])
    assert found.victims.ranks == "0-2"
