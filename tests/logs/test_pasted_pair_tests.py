"""Tests of nccl-tests between pairs of hosts: the host that all slow pairs have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

HOSTS = ("gx-1", "gx-2", "gx-3", "gx-4")
COMMAND = "srun -N2 --ntasks-per-node=4 ./all_reduce_perf -b 4G -e 4G -g 1"
AVERAGE = "# Avg bus bandwidth    : {0} "
ROW = "  4294967296    1073741824     float     sum      -1    21711  197.82  {0}      0"
HEAD = "#       size         count      type   redop    root     time   algbw   busbw #wrong"
Form = Callable[[str, str, str], list[str]]


def under_heading(one: str, other: str, speed: str) -> list[str]:
    return [f"== {one},{other}", ROW.format(speed), AVERAGE.format(speed)]


def under_arrow(one: str, other: str, speed: str) -> list[str]:
    return [f"--- {one} <-> {other} ---", AVERAGE.format(speed)]


def asked(one: str, other: str, speed: str) -> list[str]:
    return [f"$ {COMMAND.replace('srun', f'srun -w {one},{other}')}", AVERAGE.format(speed)]


def asked_in_brackets(one: str, other: str, speed: str) -> list[str]:
    hosts = f"gx-[{one[-1]},{other[-1]}]"
    return [f"$ {COMMAND.replace('srun', f'srun --nodelist={hosts}')}", AVERAGE.format(speed)]


def asked_by_mpi(one: str, other: str, speed: str) -> list[str]:
    return [f"$ mpirun -H {one}:4,{other}:4 ./all_gather_perf -b 1G", AVERAGE.format(speed)]


def whole(one: str, other: str, speed: str) -> list[str]:
    devices = [
        f"#  Rank  {at} Group  0 Pid {4100 + at} on {host:>6} device  {at % 4} [0x1b] NVIDIA H100"
        for at, host in enumerate([one] * 4 + [other] * 4)
    ]
    return [
        "# nThread 1 nGpus 1 minBytes 4294967296 maxBytes 4294967296 step: 2(factor)",
        "#",
        "# Using devices",
        *devices,
        "#",
        HEAD,
        ROW.format(speed),
        "# Out of bounds values : 0 OK",
        AVERAGE.format(speed),
        "#",
    ]


FORMS = [under_heading, under_arrow, asked, asked_in_brackets, asked_by_mpi, whole]


def run(
    form: Form, slow: Iterable[tuple[str, str]], hosts: Iterable[str] = HOSTS, least: str = "44.51"
) -> list[str]:
    pairs = list(combinations(hosts, 2))
    told = {frozenset(pair) for pair in slow}
    return [
        line
        for at, pair in enumerate(pairs)
        for line in form(*pair, least if frozenset(pair) in told else f"36{at}.2")
    ]


def pairs_of(host: str) -> list[tuple[str, str]]:
    return [(host, other) for other in HOSTS if other != host]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("host", ["gx-1", "gx-3"])
@pytest.mark.parametrize("above", [[f"$ for p in ...; do {COMMAND}; done"], ["we tested pairs"]])
def test_host_of_all_slow_pairs_is_named(
    tmp_path: Path, form: Form, host: str, above: list[str]
) -> None:
    finding = first_of(say(tmp_path, *above, *run(form, pairs_of(host))))

    assert (finding.code, finding.culprits.nodes) == ("S302", [host])


@pytest.mark.parametrize("form", FORMS)
def test_one_slow_pair_is_a_link(tmp_path: Path, form: Form) -> None:
    lines = [f"$ {COMMAND}", *run(form, [("gx-2", "gx-4")])]
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.nodes) == ("S303", ["gx-2", "gx-4"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "slow",
    [
        pytest.param([], id="alike"),
        pytest.param([("gx-1", "gx-2"), ("gx-3", "gx-4")], id="no host in both"),
        pytest.param(list(combinations(HOSTS, 2)), id="all slow"),
        pytest.param([("gx-1", "gx-2"), ("gx-1", "gx-3")], id="well with one"),
    ],
)
def test_pairs_that_name_no_host(tmp_path: Path, form: Form, slow: list[tuple[str, str]]) -> None:
    assert say(tmp_path, f"$ {COMMAND}", *run(form, slow)).findings == []


def test_tests_of_more_than_two_hosts_are_no_pairs(tmp_path: Path) -> None:
    lines = []
    for at, speed in enumerate(("44.1", "361.0", "362.5", "44.3")):
        devices = [
            f"#  Rank  {one} Group  0 Pid 41 on gx-{one + at} device  0 [0x1b] NVIDIA H100"
            for one in range(3)
        ]
        lines += ["# Using devices", *devices, AVERAGE.format(speed)]

    assert say(tmp_path, *lines).findings == []
