"""Tables of what devices of ranks do, with an index before each row as pandas prints them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.drawn import Draw, Row, draw_blanks, draw_csv, draw_markdown
from tests.logs.test_told import first_of, say

HTA = ["rank", "idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)"]
OWN = ["rank", "idle (ms)", "compute (ms)", "exposed_comm (ms)", "total (ms)"]
SHORT = ["rank", "compute_ms", "non_overlapped_comm_ms"]


def draw_pandas(head: Row, rows: list[Row]) -> list[str]:
    table = [["", *head], *([str(at), *row] for at, row in enumerate(rows))]
    return [
        "  ".join(f"{cell:>22}" if at else f"{cell:2}" for at, cell in enumerate(row))
        for row in table
    ]


def fill(
    head: Row, exposed: list[float], idle: float = 27000.0, compute: float = 390000.0
) -> list[Row]:
    rows = []
    for rank, one in enumerate(exposed):
        own = {"idle": idle, "compute": compute + 100 * rank, "exposed": one}
        own["total"] = sum(own.values())
        keys = ["idle", "compute", "exposed", "total"] if len(head) > 3 else ["compute", "exposed"]
        rows.append([str(rank), *(f"{own[key]:.1f}" for key in keys)])
    return rows


@pytest.mark.parametrize("head", [HTA, OWN, SHORT], ids=["hta", "own", "short"])
@pytest.mark.parametrize("draw", [draw_pandas, draw_blanks, draw_csv, draw_markdown])
def test_most_time_in_communication_alone(tmp_path: Path, head: Row, draw: Draw) -> None:
    lines = draw(head, fill(head, [604000.0, 605100.0, 604200.0, 603900.0]))
    finding = first_of(say(tmp_path, ">>> breakdown", *lines))

    assert (finding.code, finding.culprits.ranks) == ("P503", [])


@pytest.mark.parametrize(
    "exposed",
    [
        pytest.param([61000.0, 60100.0, 62000.0, 61500.0], id="little"),
        pytest.param([604000.0, 605000.0, 120000.0, 604000.0], id="others wait for one"),
        pytest.param([604000.0], id="one rank"),
    ],
)
@pytest.mark.parametrize("head", [HTA, OWN])
def test_breakdowns_that_tell_nothing(tmp_path: Path, head: Row, exposed: list[float]) -> None:
    report = say(tmp_path, *draw_pandas(head, fill(head, exposed)))

    assert all(one.code != "P503" for one in report.findings)
    assert not [one for one in report.findings if one.culprits.ranks]


@pytest.mark.parametrize("slow", [0, 2, 5])
def test_slow_rank_in_a_table_of_pandas(tmp_path: Path, slow: int) -> None:
    head = ["rank", "fwd_ms", "bwd_ms", "wait_ms"]
    rows = [
        [str(rank), f"{61 + 40 * (rank == slow):.1f}", "118.4", f"{90 - 39 * (rank == slow):.1f}"]
        for rank in range(6)
    ]
    finding = first_of(say(tmp_path, ">>> df", *draw_pandas(head, rows)))

    assert (finding.code, finding.culprits.ranks) == ("S301", [slow])


def test_numbers_of_rows_are_no_ranks(tmp_path: Path) -> None:
    """A table that was sorted has the numbers of its rows in another order."""
    head = ["rank", "fwd_ms", "wait_ms"]
    rows = [
        [str(rank), f"{61 + 40 * (rank == 4):.1f}", f"{40.2 * (rank != 4):.1f}"]
        for rank in (4, 0, 1, 3, 2, 5)
    ]
    finding = first_of(say(tmp_path, ">>> df", *draw_pandas(head, rows)))

    assert (finding.code, finding.culprits.ranks) == ("S301", [4])
