"""Pasted tables of recorded ops: a row for each op, and the state of each rank in a column."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

HEADS = {
    "r": " seq  op           " + "    ".join(f"r{rank}" for rank in range(4)),
    "rank": "seq_id | op | " + " | ".join(f"rank{rank}" for rank in range(4)),
    "R": "#  collective   " + "  ".join(f"R{rank}" for rank in range(4)),
}
WORDS = [
    ("done", "START", "sched"),
    ("completed", "started", "scheduled"),
    ("done", "running", "queued"),
]


def show(head: str, words: tuple[str, str, str], rows: list[tuple[int, str, str]]) -> list[str]:
    """Write a table; a state is the first letter of c(ompleted), s(tarted), e(nqueued), or -."""
    names = dict(zip("cse", words, strict=True)) | {"-": "-"}
    mark = " | " if "|" in HEADS[head] else "  "
    return [
        HEADS[head],
        *(
            mark.join([f"{seq}", op, *(names[state] for state in states)])
            for seq, op, states in rows
        ),
    ]


KEPT = [(811, "all_reduce", "ccsc"), (812, "all_reduce", "sses"), (813, "all_gather", "eeee")]


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("head", HEADS)
def test_rank_in_an_op_that_is_over_for_all_others(
    tmp_path: Path, head: str, words: tuple[str, str, str]
) -> None:
    legend = f"{words[1]} = no end yet"
    found = say(tmp_path, "last records of the 4 dumps:", *show(head, words, KEPT), legend).findings

    assert (found[0].code, found[0].culprits.ranks) == ("H123", [2])
    assert found[0].details["sequence"] == 811


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(811, "all_reduce", "cccc"), (812, "all_reduce", "ssss")], id="all wait"),
        pytest.param([(811, "all_reduce", "ccsc")], id="a job that runs"),
        pytest.param([(811, "all_reduce", "ccsc"), (812, "all_reduce", "csee")], id="one is past"),
        pytest.param([(811, "broadcast", "ccsc"), *KEPT[1:]], id="one sends"),
        pytest.param([(811, "all_reduce", "ccss"), *KEPT[1:]], id="half of them"),
        pytest.param([(811, "all_reduce", "cc-c"), (812, "all_reduce", "ss-s")], id="not told"),
        pytest.param([(811, "all_reduce", "-csc"), (812, "all_reduce", "--es")], id="two told"),
        pytest.param([(811, "all_reduce", "cccc"), (812, "all_reduce", "cccc")], id="well"),
    ],
)
@pytest.mark.parametrize("head", HEADS)
def test_table_that_tells_of_no_device_that_is_late(
    tmp_path: Path, head: str, rows: list[tuple[int, str, str]]
) -> None:
    report = say(tmp_path, *show(head, WORDS[0], rows))

    assert not any(one.code == "H123" for one in report.findings)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            [
                "task  name         r0    r1    r2    r3",
                "811  all_reduce  done  done  START  done",
                "812  all_reduce  START  START  sched  START",
            ],
            id="another table",
        ),
        pytest.param(
            [
                HEADS["r"],
                "811  all_reduce  done  done  START",
                "812  all_reduce  START  sched  START",
            ],
            id="a cell is missing",
        ),
        pytest.param(
            [HEADS["r"], "811  all_reduce  ok  ok  7.2  ok", "812  all_reduce  7.1  7.1  7.2  ok"],
            id="other words",
        ),
        pytest.param(
            [HEADS["r"].replace("r3", "r1"), *show("r", WORDS[0], KEPT)[1:]], id="a rank twice"
        ),
        pytest.param(
            [*show("r", WORDS[0], KEPT[:1]), *show("r", WORDS[0], KEPT[1:2])], id="two groups"
        ),
    ],
)
def test_what_is_no_such_table_names_nobody(tmp_path: Path, lines: list[str]) -> None:
    assert not any(one.culprits.ranks for one in say(tmp_path, *lines).findings)
