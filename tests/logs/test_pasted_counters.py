"""The last numbers that ranks print in a group, where no watchdog names the op that it gave up."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

HEAD = "[PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
FORMS = {
    "torch 2.6": HEAD + "Received a dump signal due to a collective timeout from {source} and we "
    "will try our best to dump the debug info. Last enqueued NCCL work: {enqueued}, last completed "
    "NCCL work: {done}.This is most likely caused by incorrect usages of collectives",
    "torch 2.3": "[PG 0 Rank {rank}] Exception (either an error or timeout) detected by watchdog "
    "at work: 57, last enqueued NCCL work: {enqueued}, last completed NCCL work: {done}.",
    "torch 2.7": HEAD + "failure detected by watchdog at work sequence id: 57 PG status: last "
    "enqueued work: {enqueued}, last completed work: {done}",
    "bare": HEAD + "last enqueued NCCL work: {enqueued}, last completed NCCL work: {done}.",
}
PREFIXES = {
    "none": "",
    "torchrun": "[rank{rank}]:[E817 09:14:22.771208 ProcessGroupNCCL.cpp:1785] ",
    "slurm": "{rank}: ",
    "pod": "[pod/llm-worker-{rank}/pytorch] ",
}
# What each rank issued and finished: rank 2 has nothing left, and did not come to 57.
BEHIND = ((57, 56), (57, 56), (56, 56), (58, 56))


def write(
    counters: tuple[tuple[int, int], ...],
    form: str = "torch 2.6",
    prefix: str = "",
    source: int = 0,
) -> list[str]:
    return [
        (prefix + FORMS[form]).format(
            rank=rank,
            enqueued=enqueued,
            done=done,
            source="this local rank" if rank == source else f" rank {source}",
        )
        for rank, (enqueued, done) in enumerate(counters)
    ]


def find(report: Report) -> tuple[str, list[int]]:
    finding = first_of(report)
    return finding.code, finding.culprits.ranks


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_rank_that_issued_nothing_more_did_not_come(tmp_path: Path, form: str, prefix: str) -> None:
    finding = first_of(say(tmp_path, *write(BEHIND, form, PREFIXES[prefix])))

    assert (finding.code, finding.culprits.ranks) == ("H101", [2])
    assert finding.victims.ranks == "0-1,3"
    assert finding.confidence == "likely"


@pytest.mark.parametrize("width", [80, 100, 119, 132])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("prefix", ["none", "torchrun"])
def test_lines_that_a_terminal_cut_tell_the_same(
    tmp_path: Path, form: str, prefix: str, width: int
) -> None:
    whole = write(BEHIND, form, PREFIXES[prefix])
    cut = [line[at : at + width] for line in whole for at in range(0, len(line), width)]

    assert find(say(tmp_path, "every rank says:", *cut)) == ("H101", [2])


@pytest.mark.parametrize("width", [76, 110, 150])
@pytest.mark.parametrize("form", FORMS)
def test_lines_that_are_cut_between_words_tell_the_same(
    tmp_path: Path, form: str, width: int
) -> None:
    whole = write(BEHIND, form, PREFIXES["torchrun"])
    cut = [part for line in whole for part in textwrap.wrap(line, width, break_on_hyphens=False)]

    assert find(say(tmp_path, "every rank says:", *cut)) == ("H101", [2])


def test_first_op_counts_from_nothing(tmp_path: Path) -> None:
    report = say(tmp_path, *write(((1, -1), (-1, -1), (1, -1), (1, -1))))

    assert find(report) == ("H101", [1])


@pytest.mark.parametrize(
    "counters",
    [
        pytest.param(((57, 56),) * 4, id="all wait in one op"),
        pytest.param(((56, 56),) * 4, id="all are done"),
        pytest.param(((58, 57), (57, 57), (57, 56), (58, 57)), id="who is idle finished it"),
    ],
)
def test_nobody_is_named_where_nobody_is_absent(
    tmp_path: Path, counters: tuple[tuple[int, int], ...]
) -> None:
    report = say(tmp_path, *write(counters))

    assert not [one for one in report.findings if one.culprits.ranks]


def test_most_ranks_that_are_idle_are_no_culprits(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *write(((57, 56), (56, 56), (56, 56), (56, 56)))))

    assert (finding.confidence, finding.culprits.ranks) == ("possible", [])


def test_few_ranks_that_are_shown_of_many_name_nobody(tmp_path: Path) -> None:
    lines = write(((57, 56), (56, 56), (57, 56)))
    finding = first_of(
        say(tmp_path, "torchrun --nnodes 1 --nproc-per-node 8, world_size=8", *lines)
    )

    assert (finding.confidence, finding.culprits.ranks) == ("possible", [])


def test_rank_whose_own_limit_was_met_waits_in_another_group(tmp_path: Path) -> None:
    report = say(tmp_path, *write(BEHIND, source=2))

    assert not [one for one in report.findings if one.culprits.ranks]


def test_rank_that_waits_in_another_group_is_not_absent(tmp_path: Path) -> None:
    other = (
        "[rank2]:[E817 09:14:22.7 P.cpp:1] [PG ID 3 PG GUID 7(tp) Rank 0] last enqueued work: 9, "
    )
    report = say(
        tmp_path,
        *write(BEHIND, "torch 2.7", PREFIXES["torchrun"]),
        f"{other}last completed work: 8",
    )

    assert not [one for one in report.findings if one.culprits.ranks]


def test_numbers_that_differ_name_nobody(tmp_path: Path) -> None:
    report = say(tmp_path, *write(((57, 56), (57, 56), (56, 55), (57, 56))))

    assert not [one for one in report.findings if one.culprits.ranks]
    assert "different numbers" in first_of(report).summary


def test_counters_that_no_group_names_say_nothing(tmp_path: Path) -> None:
    lines = [
        f"[rank{rank}]: last enqueued work: {57 - rank}, last completed work: 56" for rank in (0, 1)
    ]

    assert not [one for one in say(tmp_path, *lines).findings if one.culprits.ranks]
