"""A slow device and a slow rank of one number: each says of the other whose it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

CLOCKS = "$ nvidia-smi --query-gpu=index,temperature.gpu,clocks.sm,utilization.gpu --format=csv"
LINKS = (
    "$ nvidia-smi --query-gpu=index,utilization.gpu,pcie.link.gen.current,pcie.link.gen.max,"
    "pcie.link.width.current,pcie.link.width.max --format=csv,noheader"
)
NARROW = "94 %, 4, 4, 8, 16"
OLD = "94 %, 1, 4, 16, 16"
IDLE = "0 %, 1, 4, 16, 16"
WELL = "99 %, 4, 4, 16, 16"
TOOL = [
    "[2026-01-12 16:40:11] GPU relative performance:",
    " Rank=2 Node=w1 Score=0.58",
    " Rank=0 Node=w1 Score=0.97",
]


def clocks(hot: int, *, host: str = "") -> list[str]:
    rows = (f"{at}, {'90, 510' if at == hot else '61, 1830'} MHz, 100 %" for at in range(4))
    return [CLOCKS, *(f"{host}{row}" for row in rows)]


def links(bad: int, told: str = NARROW) -> list[str]:
    return [LINKS, *(f"{at}, {told if at == bad else WELL}" for at in range(4))]


def cells(slow: int) -> list[str]:
    took = [f"{'1310' if at == slow else 402 + at} ms" for at in range(4)]
    told = " | ".join(f"rank {at}: {one}" for at, one in enumerate(took))
    return [told.replace("rank 0: ", "rank 0: fwd+bwd compute ")]


def rows(slow: int, what: str = "h2d moved params") -> list[str]:
    return [
        f"rank {at}  {what} {'7.31' if at == slow else '0.3' + str(at)}s  fwd+bwd 1.40s"
        for at in range(4)
    ]


def joined(slow: int, what: str = "h2d") -> list[str]:
    took = (f"[rank{at}] {what} {'611' if at == slow else 40 + at}ms" for at in range(4))
    return [f"step 90: {'  '.join(took)}"]


def said(report: Report) -> list[tuple[str, list[int]]]:
    return [(one.code, one.culprits.ranks) for one in report.findings]


@pytest.mark.parametrize("told", [cells(2), rows(2), TOOL, [f"step 9 {cells(2)[0]}"]], ids=str)
@pytest.mark.parametrize("is_first", [False, True])
def test_rank_of_the_number_of_a_throttled_device_is_named(
    tmp_path: Path, told: list[str], *, is_first: bool
) -> None:
    lines = told + clocks(2) if is_first else clocks(2) + told
    report = say(tmp_path, *lines)

    assert said(report) == [("N413", [2])]
    assert "rank 2" in report.findings[0].summary


@pytest.mark.parametrize("asked", ["-i 2", "--id=2"])
def test_device_of_reasons_is_the_one_that_was_asked_for(tmp_path: Path, asked: str) -> None:
    lines = [
        f"$ nvidia-smi -q -d PERFORMANCE {asked}",
        "GPU 00000000:9B:00.0",
        "        HW Slowdown                       : Active",
    ]

    assert said(say(tmp_path, *cells(2), *lines)) == [("N413", [2])]
    assert ("N413", []) in said(say(tmp_path, *cells(3), *lines))
    assert ("N413", []) in said(say(tmp_path, *cells(2), lines[0].replace("2", "2,3"), *lines[1:]))


@pytest.mark.parametrize("told", [NARROW, OLD])
@pytest.mark.parametrize(
    "times", [cells(1), rows(1), rows(1, "d2h"), rows(1, "H2D copy"), joined(1)], ids=str
)
def test_rank_of_the_number_of_a_narrow_link_is_named(
    tmp_path: Path, told: str, times: list[str]
) -> None:
    report = say(tmp_path, *times, *links(1, told))

    assert said(report) == [("N415", [1])]
    assert report.findings[0].confidence == "likely"


@pytest.mark.parametrize("times", [cells(3), []], ids=["another is slow", "no times"])
@pytest.mark.parametrize(
    ("code", "lines"), [("N413", clocks(1)), ("N415", links(1))], ids=["clocks", "links"]
)
def test_device_of_another_number_is_nobodys(
    tmp_path: Path, times: list[str], code: str, lines: list[str]
) -> None:
    report = say(tmp_path, *times, *lines)

    assert (code, []) in said(report)
    assert ("S301", [3]) in said(report) or not times


def test_link_of_a_device_that_is_idle_is_well(tmp_path: Path) -> None:
    assert said(say(tmp_path, *links(1, IDLE))) == []


def test_numbers_of_devices_of_several_hosts_are_no_ranks(tmp_path: Path) -> None:
    lines = [*clocks(9, host="w1: "), *clocks(2, host="w2: ")[1:]]
    report = say(tmp_path, *cells(2), *lines)

    assert ("N413", []) in said(report)
    assert first_of(report).code in {"N413", "S301"}


def test_two_devices_that_are_slow_name_nobody(tmp_path: Path) -> None:
    lines = [line.replace("3, 61, 1830", "3, 90, 510") for line in clocks(2)]

    assert ("N413", []) in said(say(tmp_path, *cells(2), *lines))


FULL, LESS = "Speed 16GT/s, Width x16", "Speed 2.5GT/s (downgraded), Width x4 (downgraded)"
OLDER, LOST = "Speed 16GT/s (ok), Width x16 (ok)", "Speed 16GT/s (ok), Width x8 (downgraded)"


def show(
    *states: str, ask: str = "$ for d in 41 61 81 c1; do lspci -s $d:00.0 -vv; done"
) -> list[str]:
    return [ask, *(f"\t\tLnkSta:\t{state}" for state in states)]


@pytest.mark.parametrize(("full", "less"), [(FULL, LESS), (OLDER, LOST)])
@pytest.mark.parametrize("times", [cells(2), rows(2), joined(2)], ids=["cells", "rows", "joined"])
def test_rank_at_the_place_of_a_link_is_named(
    tmp_path: Path, times: list[str], full: str, less: str
) -> None:
    report = say(tmp_path, *times, *show(full, full, less, full))

    assert said(report) == [("N415", [2])]


@pytest.mark.parametrize(
    "states",
    [(FULL, LESS, FULL, FULL), (FULL, FULL, LESS), (LESS,), (FULL, FULL, LESS, LESS)],
    ids=["another place", "not all", "alone", "two of them"],
)
def test_link_at_another_place_is_nobodys(tmp_path: Path, states: tuple[str, ...]) -> None:
    report = say(tmp_path, *cells(2), *show(*states))

    assert ("S301", [2]) in said(report)
    assert ("N415", [2]) not in said(report)


@pytest.mark.parametrize("head", ["rank:fwd+bwd ms | ", "rank:forward > ", "ranks = fwd ms: "])
@pytest.mark.parametrize("between", [" ", ", "])
def test_numbers_of_ranks_before_their_times(tmp_path: Path, head: str, between: str) -> None:
    took = between.join(f"{at}:{'811' if at == 2 else 400 + at}" for at in range(4))
    report = say(tmp_path, f"step 88 | {head}{took} | step 842 ms")

    assert said(report) == [("S301", [2])]
    alike = took.replace("811", "404")
    assert said(say(tmp_path, f"step 88 | {head}{alike} | step 842 ms")) == []
    other = say(tmp_path, f"step 88 | {head.replace('fwd', 'tok').replace('forward', 'tok')}{took}")
    assert ("S301", [2]) not in said(other)
