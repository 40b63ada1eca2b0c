"""Hosts whose devices may take less power than others, and tools that name the slow ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

HOSTS = ("gx-03", "gx-04", "gx-05")
LOW = "gx-04"
QUERY = "nvidia-smi --query-gpu={0} --format=csv,noheader"
COLUMNS = "power.limit,power.draw,clocks.sm"


def watts(host: str) -> tuple[int, int]:
    return (350, 1065) if host == LOW else (700, 1935)


def rows(host: str, prefix: str = "", index: bool = False) -> list[str]:
    limit, clock = watts(host)
    return [
        f"{prefix}{f'{device}, ' if index else ''}{limit}.00 W, {limit - 2}.12 W, {clock} MHz"
        for device in range(2)
    ]


def listed(host: str) -> list[str]:
    limit, _ = watts(host)
    told = []
    for device in range(2):
        told += [
            f"|   {device}  NVIDIA H100 80GB HBM3    On  |   00000000:1{device}:00.0 Off |  0 |",
            f"| N/A   45C    P0             {limit - 3}W / {limit}W |  70012MiB / 81559MiB | 9% |",
        ]
    return ["| NVIDIA-SMI 550.54  Driver Version: 550.54  CUDA Version: 12.4 |", *told]


def long(host: str) -> list[str]:
    limit, _ = watts(host)
    return [
        line
        for device in range(2)
        for line in (
            f"GPU 00000000:1{device}:00.0",
            "    GPU Power Readings",
            f"        Average Power Draw                : {limit - 3}.20 W",
            f"        Current Power Limit               : {limit}.00 W",
            f"        Requested Power Limit             : {limit}.00 W",
            "        Default Power Limit               : 700.00 W",
        )
    ]


ASK = QUERY.format(COLUMNS)
TEXTS = {
    "loop": [
        f"$ for n in gx-03 gx-04 gx-05; do echo -- $n; ssh $n {ASK} -i 0,4; done",
        *(line for host in HOSTS for line in (f"-- {host}", *rows(host))),
    ],
    "ssh": [line for host in HOSTS for line in (f"$ ssh {host} {ASK}", *rows(host))],
    "pdsh": [
        f"$ pdsh -w gx-[03-05] {ASK} | sort",
        *(line for host in HOSTS for line in rows(host, f"{host}: ")),
    ],
    "head": [
        line
        for host in HOSTS
        for line in (
            f"== {host} ==",
            "index, power.limit [W], power.draw [W], clocks.current.sm [MHz]",
            *rows(host, index=True),
        )
    ],
    "list": [line for host in HOSTS for line in (f"$ ssh {host} nvidia-smi", *listed(host))],
    "long": [
        line for host in HOSTS for line in (f"$ ssh {host} nvidia-smi -q -d POWER", *long(host))
    ],
}


def of_power(report: Report) -> list[tuple[list[int], list[str]]]:
    found = (one for one in report.findings if one.code == "N413")
    return [(one.culprits.ranks, one.culprits.nodes) for one in found]


@pytest.mark.parametrize("form", TEXTS)
def test_host_whose_devices_may_take_half_is_named(tmp_path: Path, form: str) -> None:
    assert of_power(say(tmp_path, "slow since monday", *TEXTS[form])) == [([], [LOW])]


def test_limit_that_is_not_reached_is_none(tmp_path: Path) -> None:
    lines = [line.replace("1065 MHz", "1930 MHz") for line in TEXTS["loop"]]

    assert of_power(say(tmp_path, *lines)) == []


@pytest.mark.parametrize("form", TEXTS)
def test_limits_that_are_alike_are_nothing(tmp_path: Path, form: str) -> None:
    lines = [line.replace("350", "650").replace("1065", "1900") for line in TEXTS[form]]

    assert of_power(say(tmp_path, *lines)) == []


def test_one_device_of_a_host_is_named_by_its_number(tmp_path: Path) -> None:
    lines = [f"{k}, {300 if k == 5 else 700}.00 W, {900 if k == 5 else 1900} MHz" for k in range(8)]
    ask = QUERY.format("index,power.limit,clocks.sm")
    (found,) = say(tmp_path, "rank == gpu index", f"gx-09$ {ask}", *lines).findings

    assert (found.code, found.culprits.ranks, found.details["devices"]) == ("N413", [5], ["5"])


# ------------------------------------------------------------------- tools that compare all devices

SCORE = "  Rank={0} Node={1} Score={2:.2f}"


def report_scores(slow: set[int]) -> list[str]:
    scores = {rank: 0.58 if rank in slow else 0.99 for rank in range(32)}
    order = sorted(scores, key=lambda rank: (scores[rank], rank * 7 % 32))
    rows = [SCORE.format(rank, f"gx-{rank // 8:02}", scores[rank]) for rank in order]
    return [
        "GPU relative performance:",
        " Worst performing 10/32 ranks:",
        *rows[:10],
        " Best performing 10/32 ranks:",
        *rows[:-11:-1],
    ]


def warn(slow: set[int]) -> str:
    ids = ", ".join(f"StragglerId(rank={rank}, node='gx-{rank // 8:02}')" for rank in sorted(slow))
    return (
        "STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. "
        f"Affected ranks: {{{ids}}}"
    )


@pytest.mark.parametrize("is_warned", [False, True])
@pytest.mark.parametrize("first", [0, 8, 24])
def test_host_of_all_slow_ranks_is_named_with_them(
    tmp_path: Path, first: int, *, is_warned: bool
) -> None:
    slow = set(range(first, first + 8))
    lines = [*report_scores(slow), *([warn(slow)] if is_warned else [])]
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("S302", sorted(slow))
    assert finding.culprits.nodes == [f"gx-{first // 8:02}"]
    assert finding.confidence == "likely"


def test_host_is_named_by_the_warning_alone(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, warn(set(range(8, 16)))))

    assert (finding.code, finding.culprits.nodes) == ("S302", ["gx-01"])


@pytest.mark.parametrize("slow", [{11}, {9, 13}, {3, 20}, {1, 9, 17}])
@pytest.mark.parametrize("is_warned", [False, True])
def test_few_ranks_are_named_with_their_hosts_alone(
    tmp_path: Path, slow: set[int], *, is_warned: bool
) -> None:
    lines = [warn(slow)] if is_warned else report_scores(slow)
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("S301", sorted(slow))
    assert finding.culprits.nodes == sorted({f"gx-{rank // 8:02}" for rank in slow})


def test_scores_that_are_alike_name_nobody(tmp_path: Path) -> None:
    assert say(tmp_path, *report_scores(set())).findings == []
