"""Links of InfiniBand that came up with fewer lanes than they have."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

PORT = """\
{0} $ ibstatus mlx5_4
Infiniband device 'mlx5_4' port 1 status:
\tdefault gid:\t fe80:0000:0000:0000:a088:c203:0071:9ac2
\tstate:\t\t {1}
\tphys state:\t 5: LinkUp
\trate:\t\t {2}
\tlink_layer:\t {3}"""
UP = "4: ACTIVE"


@pytest.mark.parametrize("rate", ["100 Gb/sec (1X NDR)", "50 Gb/sec (1X HDR)", "2.5 Gb/sec (1X)"])
def test_link_of_one_lane_is_told_of_its_host(tmp_path: Path, rate: str) -> None:
    well = PORT.format("m5", UP, "400 Gb/sec (4X NDR)", "InfiniBand")

    odd = PORT.format("m6", UP, rate, "InfiniBand")
    others = ["m6 $ ibstatus | grep rate", *["\trate:\t\t 400 Gb/sec (4X NDR)"] * 4]

    finding = first_of(say(tmp_path, well, odd, *others))

    assert (finding.code, finding.culprits.nodes) == ("N410", ["m6"])
    assert "mlx5_4:1" in finding.summary


@pytest.mark.parametrize(
    ("rate", "layer"),
    [
        ("400 Gb/sec (4X NDR)", "InfiniBand"),
        ("100 Gb/sec (2X HDR)", "InfiniBand"),
        ("25 Gb/sec (1X EDR)", "Ethernet"),
    ],
)
def test_link_of_all_its_lanes_is_well(tmp_path: Path, rate: str, layer: str) -> None:
    assert say(tmp_path, PORT.format("m6", UP, rate, layer)).findings == []


GAVE_UP = (
    "{0}:{1}:41102 [3] transport/net_ib.cc:2101 NCCL WARN NET/IB: Got completion from peer "
    "10.7.0.{2}<47376> with status=12 opcode=0 len=0 vendor err 129 (Send){3} hca mlx5_3"
)
GIDS = " localGid fe80::9:a:{0} remoteGidsfe80::9:a:{1}"


def gave_up(pairs: list[tuple[int, int]], gids: str = "") -> list[str]:
    return [
        GAVE_UP.format(f"m{own}", 400 + own, peer + 20, gids.format(own, peer))
        for own, peer in pairs
    ]


@pytest.mark.parametrize("gids", ["", GIDS], ids=["no ports", "ports"])
@pytest.mark.parametrize("back", [[(4, 1)], [(4, 3), (4, 2), (4, 5)]])
def test_host_that_all_others_fail_with_is_named(
    tmp_path: Path, gids: str, back: list[tuple[int, int]]
) -> None:
    lines = gave_up([(1, 4), (2, 4), (3, 4), *back, (5, 4)], gids)
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.nodes) == ("H122", ["m4"])
    assert finding.confidence == "likely"


def test_ports_behind_a_mask_tell_no_host(tmp_path: Path) -> None:
    mask = " localGid fe80::xxxx remoteGids fe80::xxxx"
    lines = [*gave_up([(1, 4)], mask), *gave_up([(2, 4), (3, 4)])]

    assert first_of(say(tmp_path, *lines)).culprits.nodes == ["10.7.0.24"]


@pytest.mark.parametrize("pairs", [[(1, 4), (2, 3)], [(1, 4), (2, 5), (4, 2), (3, 1)], [(1, 4)]])
def test_hosts_that_fail_with_several_are_not_told_apart(
    tmp_path: Path, pairs: list[tuple[int, int]]
) -> None:
    finding = first_of(say(tmp_path, *gave_up(pairs, GIDS)))

    assert finding.confidence == "possible"


PERF = "all_reduce_perf -b 1G -e 1G -g 1, two nodes each, busbw GB/s"
PAIRS = [(1, 2), (3, 4), (5, 6), (7, 8), (2, 3), (4, 5)]


@pytest.mark.parametrize("form", ["nd-0{0},nd-0{1}   {2}", "nd-0{0} <-> nd-0{1}: {2} GB/s"])
def test_host_whose_pairs_are_all_slow_is_named(tmp_path: Path, form: str) -> None:
    rows = [form.format(a, b, 118.4 + a if 4 in (a, b) else 371.2 - a) for a, b in PAIRS]
    finding = first_of(say(tmp_path, PERF, *rows))

    assert (finding.code, finding.culprits.nodes) == ("S302", ["nd-04"])


@pytest.mark.parametrize(
    "slow", [set(), {(3, 4)}, {(1, 2), (5, 6)}, {(1, 2), (3, 4), (5, 6), (4, 5)}]
)
def test_slow_pairs_that_leave_it_open_name_no_host(
    tmp_path: Path, slow: set[tuple[int, int]]
) -> None:
    rows = [f"nd-0{a},nd-0{b}  {118.2 if (a, b) in slow else 371.0}" for a, b in PAIRS]

    assert say(tmp_path, PERF, *rows).findings == []


MLX = "{0} $ mlxlink -d mlx5_4 | grep -iE 'width|speed'\nSpeed         : {1}\nWidth         : {2}"


@pytest.mark.parametrize(
    ("speed", "width", "codes"),
    [("IB-NDR", "1x", ["N410"]), ("IB-NDR", "4x", []), ("25G", "1x", [])],
)
def test_width_that_mlxlink_tells_is_that_of_its_host(
    tmp_path: Path, speed: str, width: str, codes: list[str]
) -> None:
    findings = say(tmp_path, "slow since", MLX.format("nd-09", speed, width)).findings

    assert [one.code for one in findings] == codes
    assert all(one.culprits.nodes == ["nd-09"] for one in findings)
