"""The stack of the one rank that people show apart, beside watchdogs of all others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Report

LAUNCH = "$ torchrun --standalone --nproc_per_node=4 pretrain.py --cfg a.yaml"
WAITS = {
    "signed": "[rank{0}]:[E719 08:11:40.125589803 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog "
    "caught collective operation timeout: WorkNCCL(SeqNum=9120, OpType=ALLREDUCE, NumelIn=1, "
    "NumelOut=1, Timeout(ms)=600000) ran for 600031 milliseconds before timing out.",
    "old": "[E ProcessGroupNCCL.cpp:474] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9120, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600031 milliseconds "
    "before timing out.",
}
ABORT = (
    "E0719 08:11:46.118000 7120 torch/distributed/elastic/multiprocessing/api.py:833] failed "
    "(exitcode: -6) local_rank: {0} (pid: 7181) of binary: /usr/bin/python3"
)
COMMON = [
    "Process 7180: /usr/bin/python3 -u pretrain.py --cfg a.yaml",
    'Thread 7180 (active): "MainThread"',
    "    item (torch/_tensor.py)",
    "    log_norm (pretrain.py:90)",
    "    <module> (pretrain.py:140)",
]
ODD = [
    "Process 7182: /usr/bin/python3 -u pretrain.py --cfg a.yaml",
    'Thread 7182 (active+gil): "MainThread"',
    "    findall (re.py:240)",
    "    clean (corpus.py:31)",
    "    <module> (pretrain.py:120)",
]
HEADS = [
    "except the one of local_rank 2:",
    "but local rank 2:",
    "except for rank 2:",
    "(all like that, except rank 2, which is here:",
    "apart from that of rank 2 (pid 7182):",
    "the one of local rank 2 is different:",
    "local_rank 2:",
]


def paste(
    head: str, *, form: str = "signed", waits: tuple[int, ...] = (0, 1, 3), end: int = 1
) -> list[str]:
    told = [WAITS[form].format(rank) for rank in waits]
    return [
        LAUNCH,
        *told,
        ABORT.format(end),
        "",
        "All of them look like this",
        "",
        *COMMON,
        "",
        head,
        "",
        *ODD,
    ]


def name_all(report: Report) -> list[tuple[str, list[int]]]:
    return [(one.name, one.culprits.ranks) for one in report.findings if one.culprits.ranks]


@pytest.mark.parametrize("form", WAITS)
@pytest.mark.parametrize("head", HEADS)
def test_rank_that_is_shown_apart_is_the_one_that_did_not_come(
    tmp_path: Path, head: str, form: str
) -> None:
    found = say(tmp_path, *paste(head, form=form)).findings[0]

    assert (found.name, found.culprits.ranks) == ("rank-never-joined", [2])
    assert found.victims.ranks == "0-1,3"
    assert found.where[0].line == 31


@pytest.mark.parametrize(
    "head",
    ["not of rank 2:", "the other ranks, without rank 2:", "rank 2 talks to rank 3:", "the other:"],
)
def test_stack_of_nobody_names_no_rank(tmp_path: Path, head: str) -> None:
    assert not name_all(say(tmp_path, *paste(head)))


def test_sentence_before_any_stack_tells_of_the_others(tmp_path: Path) -> None:
    lines = [WAITS["signed"].format(rank) for rank in (0, 1, 3)]
    report = say(tmp_path, LAUNCH, *lines, "except rank 2:", "", *ODD)

    assert not name_all(report)


def test_rank_that_waited_itself_is_not_named_by_its_stack(tmp_path: Path) -> None:
    report = say(tmp_path, *paste(HEADS[0], waits=(0, 1, 2, 3)))

    assert not name_all(report)


def test_rank_that_failed_by_itself_is_no_victim(tmp_path: Path) -> None:
    lines = paste(HEADS[0], waits=(0, 3))
    lines[3] = ABORT.format(1).replace("-6", "-11")

    assert ("rank-never-joined", [2]) not in name_all(say(tmp_path, *lines))
