"""Megatron's reports of the ranks with the least and the most of each measure."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

# A step ends in a collective: all ranks take as long, and only what they compute tells.
REPORT = (
    "MnRtt/Rnk: 812.40ms/6 | MxRtt/Rnk: {most:.2f}ms/{rank} | MnPwr/Rnk: 301.00W/{rank} | "
    "MxPwr/Rnk: 690.00W/2 | MnTmp/Rnk: 44C/1 | MxTmp/Rnk: 88C/{rank} | MnUtl/Rnk: 98%/4 | "
    "MxUtl/Rnk: 100%/5 | MnClk/Rnk: {clock}MHz/{slow} | MxClk/Rnk: 1755MHz/0 | "
    "MnDRtt/Rnk: 0.10ms/3 | MxDRtt/Rnk: 0.50ms/7 | MnEtpt/Rnk: {low:.2f}TF/{rank} | "
    "MxEtpt/Rnk: 402.00TF/6"
)
BOTTOM = "^^^^ Bottom {0} Ranks with lowest  Etpt(TF): {1}"
TOP = "^^^^ Top 3 Ranks with highest Etpt(TF): 402.00TF/6, 401.20TF/2, 400.00TF/4"
STARTS = [
    "[{0}] 2025-03-04 10:00:0{0} | ",
    "INFO:megatron.core.utils:[2025-03-04 10:00:0{0}] | ",
    "node3: 0: ",
]


def report(rank: int, *, low: float = 180.0, clock: int = 810, slow: int | None = None) -> str:
    where = {"rank": rank, "slow": rank if slow is None else slow}
    return REPORT.format(most=850.0, low=low, clock=clock, **where)


def bottom(*rates: tuple[float, int]) -> str:
    return BOTTOM.format(len(rates), ", ".join(f"{rate:.2f}TF/{rank}" for rate, rank in rates))


def ranks_of(folder: Path, *lines: str) -> list[list[int]]:
    return [list(one.culprits.ranks or []) for one in say(folder, *lines).findings]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("rank", [1, 37])
def test_rank_that_computes_less_at_a_low_clock_is_named(
    tmp_path: Path, start: str, rank: int
) -> None:
    finding = first_of(say(tmp_path, start.format(1) + report(rank)))

    assert (finding.code, finding.culprits.ranks) == ("S301", [rank])
    assert "180 TFLOP/s" in finding.summary
    assert "810 MHz" in finding.summary


@pytest.mark.parametrize("start", ["", "0: ", "[2025-03-04 10:00:00] INFO "])
def test_one_that_stands_apart_in_the_list_is_named(tmp_path: Path, start: str) -> None:
    finding = first_of(say(tmp_path, start + bottom((180, 5), (396, 3), (397, 1)), TOP))

    assert (finding.code, finding.culprits.ranks) == ("S301", [5])


def test_list_confirms_what_no_clock_tells(tmp_path: Path) -> None:
    lines = [report(5, clock=1700, slow=2), bottom((180, 5), (396, 3), (397, 1)), TOP]

    assert ranks_of(tmp_path, *lines) == [[5]]


def test_the_same_rank_in_several_reports_is_named(tmp_path: Path) -> None:
    assert ranks_of(tmp_path, *[report(5, low=180 + n, clock=1700, slow=2) for n in range(4)]) == [
        [5]
    ]


@pytest.mark.parametrize(
    "lines",
    [
        [report(5, low=395, clock=1740)],
        [report(5, clock=1700, slow=2)],
        [report(rank, clock=1700, slow=2) for rank in (1, 5, 7, 3)],
        [report(5), bottom((180, 5), (181, 4), (182, 1))],
        [bottom((180, 5), (181, 4), (396, 1)), TOP],
        [bottom((390, 5), (396, 3), (397, 1)), TOP],
        [TOP],
    ],
    ids=["even", "one report", "others", "many", "two", "even list", "the most"],
)
def test_where_no_rank_stands_apart_none_is_named(tmp_path: Path, lines: list[str]) -> None:
    assert ranks_of(tmp_path, *lines) == []
