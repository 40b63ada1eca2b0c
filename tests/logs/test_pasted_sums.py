"""What nccl-tests prints of results that are wrong, and of those that are right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

START = "# nThread 1 nGpus 1 minBytes 8388608 maxBytes 16777216 step: 2(factor) validation: 1"
HEAD = (
    "#       size         count      type   redop    root     time   algbw   busbw {0}     time"
    "   algbw   busbw {0}"
)
UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            "
ROW = (
    "     8388608       2097152     float     sum      -1    91.30   91.88  160.79 {0:>6}"
    "    90.91   92.27  161.48 {1:>6}"
)
TOTAL = "# Out of bounds values : {0}"
Cells = Sequence[tuple[object, object]]


def devices(*hosts: str, since: int = 0) -> list[str]:
    rows = [
        f"#  Rank {at:2} Group  0 Pid {7100 + at} on {host:>9} device {at % 4:2} [0x1b] NVIDIA H100"
        for at, host in enumerate(hosts)
    ]
    return rows[since:] if since or not hosts else ["# Using devices", *rows]


def write(
    cells: Cells, total: str = "", hosts: Sequence[str] = (), *, head: str = "#wrong"
) -> list[str]:
    rows = [ROW.format(*cell) for cell in cells]
    told = [TOTAL.format(total)] if total else []
    return [*devices(*hosts), "#", HEAD.format(head), UNITS, *rows, *told]


ONE = ["hx-4"] * 4


@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>:", "0: "])
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(write([(0, 5), (12, 0)], "17 FAILED"), id="whole"),
        pytest.param([START, *write([(0, 17), (0, 0)])], id="cut below"),
        pytest.param([TOTAL.format("17 FAILED"), "# Avg bus bandwidth    : 160.1"], id="cut above"),
        pytest.param(write([("5e-07", "3e+01")], "17 FAILED", head=" error"), id="old"),
    ],
)
def test_wrong_results_of_a_test_are_told(tmp_path: Path, lines: list[str], prefix: str) -> None:
    finding = first_of(say(tmp_path, *(prefix + line for line in lines)))

    assert (finding.code, finding.culprits.ranks, finding.culprits.nodes) == ("N419", [], [])
    assert "17 wrong values" in finding.summary


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([START, *write([(0, 0), (0, 0)], "0 OK")], id="right"),
        pytest.param(write([("N/A", "N/A")], "0 OK"), id="not checked"),
        pytest.param(write([("5e-07", "5e-07")], "0 OK", head=" error"), id="old, rounded"),
        pytest.param(write([(0, 0)], "17 FAILED")[:-2], id="cut"),
        pytest.param(["it said 17 FAILED", "# Out of bounds values of x : 3"], id="words"),
    ],
)
def test_right_results_are_not_told(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *lines)

    assert all(one.code != "N419" for one in report.findings)


@pytest.mark.parametrize(
    ("listed", "nodes"),
    [
        pytest.param(devices(*ONE), ["hx-4"], id="one host"),
        pytest.param(devices(*ONE, *["hx-5"] * 4), [], id="two hosts"),
        pytest.param(devices(*["hx-5"] * 4, *ONE, since=5), [], id="cut"),
        pytest.param([*devices(*ONE), "..."], [], id="left out"),
        pytest.param([*devices(*ONE), "#  ... and 12 more"], [], id="left out in it"),
    ],
)
def test_host_of_a_test_is_named_where_there_is_one(
    tmp_path: Path, listed: list[str], nodes: list[str]
) -> None:
    lines = [*listed, *write([(0, 3)], "3 FAILED")]

    finding = first_of(say(tmp_path, START, *lines))

    assert (finding.code, finding.culprits.nodes) == ("N419", nodes)


def test_hosts_of_a_test_that_is_well_are_forgotten(tmp_path: Path) -> None:
    well = write([(0, 0)], "0 OK", ONE)
    lines = [START, *well, START, *write([(0, 1)], "1 FAILED", ["hx-7"] * 2)]

    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.nodes) == ("N419", ["hx-7"])
    assert "1 wrong value:" in finding.summary
