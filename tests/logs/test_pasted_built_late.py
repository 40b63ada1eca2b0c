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


BEGUN = " > building shuffle index with split [0, 7204431) and [7204431, 7204431) ..."
HEAD = " > WARNING: could not find index map files, building the indices on rank 0 ..."
BARRIER = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut={3}, Timeout(ms)=600000) ran "
    "for 600011 milliseconds before timing out."
)


def give_up(*ranks: int, seq: int = 1, op: str = "ALLREDUCE", size: int = 1) -> list[str]:
    return [BARRIER.format(rank, seq, op, size) for rank in ranks]


@pytest.mark.parametrize("op", ["ALLREDUCE", "BARRIER"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mark", ["", "0: ", "[default0]:", "[rank0]:"])
@pytest.mark.parametrize("begun", [BEGUN, "> Building the sample index for the blend"])
def test_index_whose_next_part_begins_after_others_gave_up_is_the_cause(
    tmp_path: Path, begun: str, mark: str, form: str, op: str
) -> None:
    lines = [HEAD, form.format("doc-idx", "310.2"), form.format("sample-idx", "105.9")]
    found = say(
        tmp_path, *(mark + line for line in lines), *give_up(5, 6, op=op), mark + begun
    ).findings[0]

    assert (found.code, found.culprits.ranks, found.victims.ranks) == ("H117", [0], "5-6")
    assert "416 s" in found.summary


PART = FORMS[0].format("doc-idx", "410.2")
SHORT = FORMS[0].format("doc-idx", "41.2")


@pytest.mark.parametrize(
    "lines",
    [
        [HEAD, PART, BEGUN, *give_up(5)],
        [HEAD, SHORT, *give_up(5), BEGUN],
        [HEAD, PART, *give_up(5, size=4096), BEGUN],
        [HEAD, PART, *give_up(5, seq=18233), BEGUN],
        [HEAD, PART, *give_up(5, op="ALLGATHER"), BEGUN],
        [HEAD, PART, *give_up(5), HEAD, BEGUN],
        [HEAD, PART, *give_up(5), "the shuffle index is next: building shuffle index"],
        [HEAD, "0:" + PART, "0:" + BEGUN, *give_up(0, 5), "0:" + BEGUN],
        [HEAD, *give_up(5), BEGUN],
        [f"[rank0]:{HEAD}", f"[rank0]:{PART}", *give_up(0, 5), f"[rank0]:{BEGUN}"],
        [HEAD, PART, *give_up(5), "print(' > building shuffle index with split [0, 1)')"],
    ],
    ids=[
        *("before", "short", "large", "late in the run", "another op", "anew", "words", "again"),
        *("no times", "waits itself", "source"),
    ],
)
def test_index_that_is_not_seen_to_be_under_way_is_no_cause(
    tmp_path: Path, lines: list[str]
) -> None:
    assert not any(one.code == "H117" for one in say(tmp_path, *lines).findings)


def test_rank_that_gave_up_does_not_build(tmp_path: Path) -> None:
    found = say(tmp_path, HEAD, PART, *give_up(0, 5), BEGUN).findings[0]

    assert found.culprits.ranks == []


PARTS = [
    ("blend 1/4 done after 350.2 s", "blend 2/4 done after 290.9 s, next: books"),
    ("corpus 3/8 finished in 401 sec", "corpus 4/8 finished in 777 sec"),
    ("dataset 1/2 indexed after 120.0 s", "dataset 2/2 indexed after 610.5 s"),
]


@pytest.mark.parametrize("mark", ["[rank0] ", "0: ", ""])
@pytest.mark.parametrize("parts", PARTS)
def test_parts_of_a_blend_that_took_longer_than_the_limit_are_the_cause(
    tmp_path: Path, parts: tuple[str, str], mark: str
) -> None:
    found = say(tmp_path, mark + parts[0], *give_up(6, 7), mark + parts[1]).findings[0]

    assert (found.code, found.victims.ranks) == ("H117", "6-7")


@pytest.mark.parametrize(
    "lines",
    [
        ["[rank0] blend 1/4 done after 650.2 s", *give_up(6)],
        ["[rank0] blend 1/4 done after 50.2 s", *give_up(6), "[rank0] blend 2/4 done after 60 s"],
        [*give_up(6), "[rank0] dataset 2/4 done after 900.1 s, accuracy 0.81"],
        [*give_up(6), "[rank6] blend 2/4 done after 900.1 s"],
        [*give_up(6), "[rank0] epoch 2/4 done after 900.1 s"],
    ],
    ids=["before", "short", "of an evaluation", "of who waits", "an epoch"],
)
def test_parts_that_kept_nobody_are_no_cause(tmp_path: Path, lines: list[str]) -> None:
    assert not any(one.code == "H117" for one in say(tmp_path, *lines).findings)
