"""Indices of the data are built for longer than the other ranks wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

WAIT = (
    "[E ProcessGroupNCCL.cpp:474] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
    "600{0:03} milliseconds before timing out."
)
FORMS = (
    " > elapsed time to build and save {0} mapping (seconds): {1}",
    " > elasped time to build and save {0} mapping (seconds): {1}",
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mark", ["", "0: ", "[default0]:"])
def test_index_that_took_longer_than_the_limit_is_the_cause(
    tmp_path: Path, form: str, mark: str
) -> None:
    found = say(
        tmp_path,
        mark + form.format("doc-idx", "190.25"),
        WAIT.format(9),
        WAIT.format(30),
        mark + form.format("sample-idx", "455.5"),
    ).findings[0]

    assert (found.code, found.victims.ranks) == ("H117", "9,30")
    assert "646 s" in found.summary


@pytest.mark.parametrize(
    "lines",
    [
        # it was ready before they gave up
        [FORMS[0].format("doc-idx", "700.1"), WAIT.format(9)],
        # it took less than they waited
        [FORMS[0].format("doc-idx", "20.1"), WAIT.format(9), FORMS[0].format("shuffle-idx", "3.5")],
    ],
    ids=["before", "short"],
)
def test_index_that_kept_nobody_for_so_long_is_no_cause(tmp_path: Path, lines: list[str]) -> None:
    assert not any(one.code == "H117" for one in say(tmp_path, *lines).findings)
