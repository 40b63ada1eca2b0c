"""Bandwidths between hosts in a matrix, and rates of the cards of a host."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.drawn import DRAWN, Draw, Row, draw_blanks, draw_markdown
from tests.logs.test_told import first_of, say

HOSTS = ["mi-a", "mi-b", "mi-c", "mi-d"]
HEADS = ["busbw GB/s", "pairwise all_reduce bandwidth (GB/s):", "iperf3 between nodes, in Gbit/s"]


def write_matrix(
    *slow: str,
    hosts: list[str] = HOSTS,
    own: str = "-",
    corner: str = "from/to",
    is_to: bool = False,
) -> tuple[Row, list[Row]]:
    rows = []
    for one in hosts:
        cells = [one]
        for at, other in enumerate(hosts):
            ends = {other} if is_to else {one, other}
            speed = (88.4 if ends & set(slow) else 350.2) + 0.3 * at
            cells.append(own if one == other else f"{speed:.1f}")
        rows.append(cells)
    return [corner, *hosts], rows


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize("head", HEADS)
def test_host_that_is_slow_with_all_others(tmp_path: Path, draw: Draw, head: str) -> None:
    finding = first_of(say(tmp_path, head, "", *draw(*write_matrix("mi-d"))))

    assert (finding.code, finding.culprits.nodes) == ("S302", ["mi-d"])
    assert finding.culprits.ranks == []


@pytest.mark.parametrize("own", ["-", "x", "0.0", "n/a", "\u2014"])
@pytest.mark.parametrize(
    "hosts", [["n01", "n02", "n03", "n04", "n05"], ["ana", "bob", "cyd", "dee"]]
)
def test_names_of_hosts_and_cells_of_one_host(tmp_path: Path, own: str, hosts: list[str]) -> None:
    lines = draw_markdown(*write_matrix(hosts[1], hosts=hosts, own=own, corner="busbw (GB/s)"))
    assert first_of(say(tmp_path, *lines)).culprits.nodes == [hosts[1]]


def test_nothing_stands_where_a_host_meets_itself(tmp_path: Path) -> None:
    head, rows = write_matrix("mi-b")
    lines = ["  ".join(row).replace("  -", "  ") for row in rows]
    assert first_of(say(tmp_path, HEADS[0], "  ".join(head[1:]), *lines)).culprits.nodes == ["mi-b"]


def test_host_that_only_receives_slowly(tmp_path: Path) -> None:
    lines = draw_blanks(*write_matrix("mi-c", is_to=True))
    assert first_of(say(tmp_path, HEADS[0], *lines)).culprits.nodes == ["mi-c"]


def test_one_of_three_hosts(tmp_path: Path) -> None:
    told = write_matrix("gx03", hosts=["gx01", "gx02", "gx03"], corner="")
    finding = first_of(say(tmp_path, "host to host, GB/s", "", *draw_blanks(*told)))
    assert (finding.code, finding.culprits.nodes) == ("S302", ["gx03"])


def test_one_pair_that_is_slow(tmp_path: Path) -> None:
    head, rows = write_matrix()
    rows[1][3] = rows[2][2] = "88.0"
    finding = first_of(say(tmp_path, HEADS[0], *draw_markdown(head, rows)))

    assert (finding.code, finding.culprits.nodes) == ("S303", ["mi-b", "mi-c"])
    assert finding.culprits.ranks == []


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([HEADS[0], *draw_blanks(*write_matrix())], id="alike"),
        pytest.param([HEADS[0], *draw_blanks(*write_matrix("mi-a", "mi-b"))], id="half of them"),
        pytest.param(["ping latency in us", *draw_blanks(*write_matrix("mi-a"))], id="times"),
        pytest.param(
            ["hops between hosts", *draw_blanks(*write_matrix("mi-a"))], id="other things"
        ),
        pytest.param(
            [HEADS[0], *draw_blanks(*write_matrix("gpu1", hosts=["gpu0", "gpu1", "gpu2", "gpu3"]))],
            id="devices",
        ),
    ],
)
def test_matrix_that_tells_nothing(tmp_path: Path, lines: list[str]) -> None:
    assert say(tmp_path, *lines).findings == []


LOOP = (
    "{0} # for d in mlx5_0 mlx5_1 mlx5_2 mlx5_3; do cat /sys/class/infiniband/$d/ports/1/rate; done"
)
FORMS = [
    "mlx5_{0} {1} Gb/sec ({2}X NDR)",
    "mlx5_{0}: {1} Gb/sec ({2}X NDR)",
    "/sys/class/infiniband/mlx5_{0}/ports/1/rate:{1} Gb/sec ({2}X NDR)",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lanes", [(100, 1), (200, 2)])
def test_card_with_fewer_lanes_than_others(
    tmp_path: Path, form: str, lanes: tuple[int, int]
) -> None:
    rows = [form.format(at, *(lanes if at == 2 else (400, 4))) for at in range(4)]
    finding = first_of(say(tmp_path, LOOP.format("mi-d"), *rows))

    assert (finding.code, finding.culprits.nodes) == ("N410", ["mi-d"])
    assert finding.details["port"] == "mlx5_2:1"


@pytest.mark.parametrize("lanes", [(400, 4), (25, 1)])
def test_cards_that_are_alike(tmp_path: Path, lanes: tuple[int, int]) -> None:
    rows = [FORMS[0].format(at, *lanes) for at in range(4)]
    assert say(tmp_path, LOOP.format("mi-d"), *rows).findings == []


def test_card_of_another_kind_is_no_fault(tmp_path: Path) -> None:
    # One that is made for less has as many lanes.
    rows = [FORMS[0].format(at, 100 if at == 0 else 400, 4) for at in range(4)]
    assert say(tmp_path, LOOP.format("mi-d"), *rows).findings == []
