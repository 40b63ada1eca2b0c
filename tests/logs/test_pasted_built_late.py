"""Indices of the data are built for longer than the other ranks wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Verdict

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


BUILDING = [
    " > WARNING: could not find index map files, building the indices on rank 3 ...",
    "[rank3]: building dataset index files on rank 3",
    "INFO Building and saving the sample index on global rank 3",
]
SIZES = [
    "-rw-r--r-- 1 ml ml 9663676544 Oct  4 10:52 /data/c5/train_indexmap_sample_idx.npy",
    "-rw-r--r-- 1 ml ml 9998172288 Oct  4 10:53 /data/c5/train_indexmap_sample_idx.npy",
]


@pytest.mark.parametrize("line", BUILDING)
def test_index_that_grows_is_not_stuck(tmp_path: Path, line: str) -> None:
    report = say(tmp_path, line, "# 20 minutes and no more output", "$ ls -l /data/c5", *SIZES)
    (finding,) = (one for one in report.findings if one.code[0] != "E")

    assert (finding.code, finding.culprits.ranks) == ("H117", [3])
    assert report.verdict is Verdict.WAITING


@pytest.mark.parametrize(
    "lines",
    [
        [BUILDING[0], SIZES[0], SIZES[0]],
        [BUILDING[0], SIZES[0]],
        [BUILDING[0], *(one.replace("_sample_idx.npy", ".log") for one in SIZES)],
        [BUILDING[0], *(one.replace("/data/c5/", "") for one in SIZES)],
        [*SIZES, BUILDING[0]],
        [
            BUILDING[0],
            *SIZES,
            " > elapsed time to build and save sample-idx mapping (seconds): 412.118331",
        ],
        ["building the model on rank 3", *SIZES],
        SIZES,
    ],
    ids=["still", "once", "a log", "anywhere", "before", "built", "a model", "nobody"],
)
def test_index_that_does_not_grow_tells_nothing(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *lines)

    assert [one for one in report.findings if one.code == "H117"] == []


SOCKET = (
    "[rank{0}]: EI0006: [PID: 71{0}] 2026-01-09-07:31:05.22{0}.104 Getting socket times out. "
    "Reason: Remote Rank did not send the data in time. Please check the network connection"
)
LIMITS = {
    "default": [],
    "shown": ["HCCL_CONNECT_TIMEOUT=240"],
    "export": ["export HCCL_CONNECT_TIMEOUT=240"],
}
BOTH = "[rank0]  > elapsed time to build and save shuffle-idx and sample-idx mapping (seconds): {0}"


@pytest.mark.parametrize("form", [BOTH, "[rank0]" + FORMS[0].format("sample-idx", "{0}")])
@pytest.mark.parametrize("limit", LIMITS)
def test_links_of_hccl_have_to_wait_for_an_index_as_well(
    tmp_path: Path, limit: str, form: str
) -> None:
    lines = [SOCKET.format(1), SOCKET.format(3), form.format("301.5"), *LIMITS[limit]]
    found = say(tmp_path, *lines).findings[0]

    assert (found.code, found.victims.ranks) == ("H117", "1,3")


@pytest.mark.parametrize(
    "lines",
    [
        [SOCKET.format(1), SOCKET.format(3), BOTH.format("301.5"), "HCCL_CONNECT_TIMEOUT=1800"],
        [SOCKET.format(1), SOCKET.format(3), BOTH.format("80.5")],
        [BOTH.format("301.5"), SOCKET.format(1), SOCKET.format(3)],
        [SOCKET.format(1), SOCKET.format(0), BOTH.format("301.5")],
    ],
    ids=["longer limit", "short", "before", "waits itself"],
)
def test_index_that_does_not_explain_links_that_did_not_come_is_no_cause(
    tmp_path: Path, lines: list[str]
) -> None:
    found = say(tmp_path, *lines).findings[0]

    assert (found.code, found.culprits.ranks) == ("H121", [])
