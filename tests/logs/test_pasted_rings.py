"""Pasted stacks beside source of transfers: who waits for whom, while others are past it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

HEAD = {
    "ps": 'RANK {0} pid 70{0}\nThread 70{0} (idle): "MainThread"\n',
    "py-spy": 'Process 70{0}: python t.py --local_rank={0}\nThread 70{0} (active): "MainThread"\n',
    "comment": '$ py-spy dump -p 70{0}  # rank {0}\nThread 70{0} (active): "MainThread"\n',
}
TRANSFER = """\
    {half} (torch/distributed/distributed_c10d.py:1884)
    wrapper (torch/distributed/c10d_logger.py:72)
    exchange (pipe.py:{line})
    main (pipe.py:137)
"""
COLLECTIVE = """\
    all_reduce (torch/distributed/distributed_c10d.py:2219)
    wrapper (torch/distributed/c10d_logger.py:72)
    sync_tied (pipe.py:118)
    main (pipe.py:{main})
"""
SENDS_FIRST = ["    dist.send(out, dst=peer)", "    dist.recv(inp, src=peer)"]
WRITTEN = {
    "code": SENDS_FIRST,
    "numbered": ["61      dist.send(out, dst=peer)", "62      dist.recv(inp, src=peer)"],
    "named": [
        "pipe.py:61 is  dist.send(out, dst=peer)   # peer = rank ^ 1",
        "pipe.py:62 is  dist.recv(inp, src=peer)",
    ],
    "grep": ["w/pipe.py:61:    dist.send(out, dst=peer)", "w/pipe.py:62:    dist.recv(inp, peer)"],
}


def paste(
    folder: Path,
    halves: dict[int, str],
    source: list[str],
    *,
    head: str = "ps",
    main: int = 143,
    prefix: str = "",
) -> Report:
    """Diagnose stacks of four ranks, of which those without a half are in a collective."""
    lines = ["hangs with hidden=8192, never with the tiny model"]
    for rank in range(4):
        body = (
            TRANSFER.format(half=halves[rank], line=61)
            if rank in halves
            else COLLECTIVE.format(main=main)
        )
        lines += (HEAD[head].format(rank) + body).splitlines()
    return say(folder, *(f"{prefix}{line}" for line in (*lines, "", *source)))


@pytest.mark.parametrize("head", HEAD)
@pytest.mark.parametrize("source", WRITTEN)
def test_ranks_that_both_send_first_are_named(tmp_path: Path, head: str, source: str) -> None:
    report = paste(tmp_path, {2: "send", 3: "send"}, WRITTEN[source], head=head)
    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("H109", [2, 3])
    assert finding.victims.ranks == "0-1"
    assert finding.where[0].line == 61


def test_ranks_that_both_receive_first_are_named_behind_a_prefix(tmp_path: Path) -> None:
    source = ["dist.recv(inp, src=peer)", "dist.send(out, dst=peer)"]
    report = paste(tmp_path, {0: "recv", 1: "recv"}, source, prefix="> ")

    assert (first_of(report).code, first_of(report).culprits.ranks) == ("H109", [0, 1])


@pytest.mark.parametrize(
    ("halves", "source", "main"),
    [
        pytest.param({2: "send", 3: "send"}, [], 143, id="no source"),
        pytest.param({2: "send", 3: "send"}, SENDS_FIRST[::-1], 143, id="source receives first"),
        pytest.param({2: "send", 3: "recv"}, SENDS_FIRST, 143, id="a pair that fits"),
        pytest.param({3: "send"}, SENDS_FIRST, 143, id="one alone"),
        pytest.param({1: "send", 2: "send", 3: "send"}, SENDS_FIRST, 143, id="one too many"),
        pytest.param({2: "send", 3: "send"}, SENDS_FIRST, 130, id="others are not past it"),
        pytest.param(
            {2: "send", 3: "send"},
            ["dist.send(out, dst=nxt)", "dist.recv(inp, src=prev)"],
            143,
            id="to another peer",
        ),
        pytest.param(
            {2: "send", 3: "send"},
            ["if rank % 2:", *SENDS_FIRST, "else:", *SENDS_FIRST[::-1]],
            143,
            id="both orders",
        ),
    ],
)
def test_who_may_be_waiting_for_others_is_not_named(
    tmp_path: Path, halves: dict[int, str], source: list[str], main: int
) -> None:
    report = paste(tmp_path, halves, source, main=main)

    assert all(one.code != "H109" for one in report.findings)
    assert not {rank for one in report.findings for rank in one.culprits.ranks}


def test_stack_that_somebody_cut_leaves_it_open(tmp_path: Path) -> None:
    report = paste(tmp_path, {2: "send", 3: "send"}, [*SENDS_FIRST, "[rank4]: step 11 loss 2.1"])

    assert all(one.code != "H109" for one in report.findings)
