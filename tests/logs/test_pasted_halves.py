"""Sends and receives that ranks print: which half is missing, and whose it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.parse.logs.blocks.calls.transfer_notes import read_notes

GAVE_UP = (
    "[rank{0}]:[E1105 19:22:41.338120177 ProcessGroupNCCL.cpp:607] [Rank {1}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=1{0}, OpType={2}, NumelIn=8388608, "
    "NumelOut=8388608, Timeout(ms)=600000) ran for 600041 milliseconds before timing out."
)
# Rank, micro batch, kind, payload, peer, whether it is over; rank 1 leaves out a send of 7.
PIPE = [
    (0, 6, "send", "act", 1, True),
    (0, 7, "send", "act", 1, True),
    (0, 0, "recv", "grad", 1, False),
    (1, 6, "recv", "act", 0, True),
    (1, 6, "send", "act", 2, True),
    (1, 7, "recv", "act", 0, True),
    (1, 0, "recv", "grad", 2, False),
    (2, 6, "recv", "act", 1, True),
    (2, 6, "send", "act", 3, True),
    (2, 7, "recv", "act", 1, False),
    (3, 6, "recv", "act", 2, True),
    (3, 7, "recv", "act", 2, False),
]
Row = tuple[int, int, str, str, int, bool]


def write_dots(row: Row) -> str:
    rank, item, kind, what, peer, is_over = row
    way = "from" if kind == "recv" else "to"
    return f"{rank}: stage{rank} mb={item} {kind} {what} {way} {peer} ...{' ok' * is_over}"


def write_words(row: Row) -> str:
    rank, item, kind, what, peer, is_over = row
    long = {"act": "activations", "grad": "gradients"}[what]
    verb = {"recv": ("receiving", "received"), "send": ("sending", "sent")}[kind][is_over]
    way = "from" if kind == "recv" else "to"
    return f"[rank{rank}]: {verb} {long} of microbatch {item} {way} rank {peer}"


def write_arrows(row: Row) -> str:
    rank, item, kind, what, peer, is_over = row
    arrow = "<-" if kind == "recv" else "->"
    return f"rank={rank} step 12 {kind} {what} {item} {arrow} {peer}{' done' * is_over}"


def write_calls(row: Row) -> str:
    rank, item, kind, what, peer, is_over = row
    end = "backward" if what == "grad" else "forward"
    way = "src" if kind == "recv" else "dst"
    return f"rank{rank}: {kind}_{end} {way}={peer} (mb {item}){' done' * is_over}"


def write_tags(row: Row) -> str:
    rank, item, kind, what, peer, is_over = row
    verb, way = ("receive", "from") if kind == "recv" else ("send", "to")
    return f"rank{rank}: {verb} {what} tag {item} {way} rank {peer}{': finished' * is_over}"


FORMS = [write_dots, write_words, write_arrows, write_calls, write_tags]


def paste(rows: list[Row], form: int = 0, op: str = "RECV") -> list[str]:
    pending = sorted({row[0] for row in rows if not row[5]})
    waits = [GAVE_UP.format(rank, rank % 2, op) for rank in pending]
    return [*map(FORMS[form], rows), "(nothing for 10 minutes)", *waits]


def judge(folder: Path, lines: list[str]) -> tuple[str, list[int]]:
    finding = first_of(say(folder, *lines))
    return finding.code, finding.culprits.ranks


@pytest.mark.parametrize("form", range(len(FORMS)))
def test_rank_that_is_past_a_send_left_it_out(tmp_path: Path, form: int) -> None:
    assert judge(tmp_path, paste(PIPE, form)) == ("H110", [1])


@pytest.mark.parametrize("form", range(len(FORMS)))
def test_rank_that_sent_a_later_one_left_it_out(tmp_path: Path, form: int) -> None:
    rows: list[Row] = [
        (0, 5, "send", "act", 1, True),
        (0, 7, "send", "act", 1, True),
        (1, 5, "recv", "act", 0, True),
        (1, 6, "recv", "act", 0, False),
    ]

    assert judge(tmp_path, paste(rows, form)) == ("H110", [0])


def test_rank_that_says_nothing_more_never_sent(tmp_path: Path) -> None:
    rows = [row for row in PIPE if row[:2] != (1, 0)]

    assert judge(tmp_path, paste(rows)) == ("H110", [1])


@pytest.mark.parametrize("form", range(len(FORMS)))
def test_ranks_that_all_send_first_are_a_ring(tmp_path: Path, form: int) -> None:
    rows: list[Row] = [(rank, 3, "send", "act", (rank + 1) % 3, False) for rank in range(3)]

    assert judge(tmp_path, paste(rows, form, "SEND")) == ("H109", [0, 1, 2])


def test_stages_that_are_other_ranks_are_told_by_their_lines(tmp_path: Path) -> None:
    lines = [
        line if " stage" not in line else f"{3 - int(line[0])}{line[1:]}" for line in paste(PIPE)
    ]
    lines = [line for line in lines if "OpType" not in line]
    lines += [GAVE_UP.format(rank, rank % 2, "RECV") for rank in range(4)]

    assert judge(tmp_path, lines) == ("H110", [2])


LATER = [*PIPE[:6], (1, 8, "recv", "act", 0, False), *PIPE[7:]]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([line for line in paste(PIPE) if "OpType" not in line], id="it runs"),
        pytest.param(paste(PIPE, op="ALLREDUCE"), id="they wait in another op"),
        pytest.param(paste(LATER), id="the next one may be received before"),
        pytest.param(
            [line.replace("send act", "push") for line in paste(PIPE)], id="sends are not printed"
        ),
    ],
)
def test_halves_that_tell_nothing_name_nobody(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *lines)

    assert not {rank for one in report.findings for rank in one.culprits.ranks}


def test_lines_that_tell_of_no_transfer() -> None:
    for text in (
        "skipped send of mb 7 to 2",
        "failed to send act to 3",
        "stage1 mb=7 skip forward of this mb",
        "sending logs from 3",
        "received signal 15",
    ):
        states = {note["state"] for note in read_notes(text)}
        assert not states & {"made", "over", "waiting"}


@pytest.mark.parametrize(
    ("text", "peer", "way", "state"),
    [
        ("stage2 mb 5 recv from 1, send to 3", "3", "send", "made"),
        ("sent mb 5 of rank 7 from 1 to 2", "2", "send", "over"),
        ("rank 2 waiting for mb 7 from stage 1 (last received 6)", "1", "recv", "waiting"),
        ("rank 2: never sent mb 7 to 3", "3", "send", "left out"),
    ],
)
def test_peer_is_the_one_that_fits_the_verb(text: str, peer: str, way: str, state: str) -> None:
    (note,) = read_notes(text)

    assert (note["peer"], note["way"], note["state"]) == (peer, way, state)
