"""Stacks of all ranks beside watchdogs of most: who is in another collective left the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say
from tests.logs.test_who import WAIT

BACKWARD = """\
Thread {0} (active): "MainThread"
    backward (torch/autograd/graph.py:829)
    backward (torch/_tensor.py:648)
    step (train.py:61)
    <module> (train.py:71)"""
BARRIER = """\
Thread {0} (active): "MainThread"
    barrier (torch/distributed/distributed_c10d.py:4818)
    wrapper (torch/distributed/c10d_logger.py:81)
    end_epoch (train.py:44)
    <module> (train.py:80)"""
TABLE = [f"rank {rank} (pid 550{rank}): 122 shards" for rank in range(4)]


def paste(*stacks: str, waiting: tuple[int, ...] = (0, 1, 2)) -> list[str]:
    shown = [stack.format(f"550{rank}") for rank, stack in enumerate(stacks)]
    return [*map(WAIT.format, waiting), "$ py-spy dump -p $p", *shown, *TABLE]


def test_rank_in_a_collective_of_its_own_is_named(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *paste(BACKWARD, BACKWARD, BACKWARD, BARRIER)))

    assert (finding.code, finding.culprits.ranks) == ("H101", [3])
    assert "end_epoch (train.py:44)" in finding.summary


def test_rank_whose_line_the_log_lacks_is_not_named(tmp_path: Path) -> None:
    half = paste(BACKWARD, BACKWARD, BARRIER, BARRIER, waiting=(0, 1))
    unseen = paste(BACKWARD, BACKWARD, BARRIER, waiting=(0, 1))

    for lines in (half, unseen):
        report = say(tmp_path, *lines)
        assert not {rank for one in report.findings for rank in one.culprits.ranks}


ENGINE = BACKWARD.replace(
    "    backward (torch/autograd", "    _engine_run_backward (torch/autograd"
)


def test_rank_in_a_barrier_beside_backward_of_the_next_step_is_named(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *paste(BARRIER, ENGINE, ENGINE, ENGINE, waiting=())))

    assert (finding.code, finding.culprits.ranks) == ("H101", [0])


def test_rank_in_the_backward_of_all_whose_line_is_missing_is_not_named(tmp_path: Path) -> None:
    report = say(tmp_path, *paste(ENGINE, ENGINE, ENGINE, ENGINE, waiting=(0, 1, 2)))

    assert not {rank for one in report.findings for rank in one.culprits.ranks}


def test_rank_alone_in_backward_is_still_late(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *paste(ENGINE, BARRIER, BARRIER, BARRIER, waiting=())))

    assert (finding.code, finding.culprits.ranks) == ("H101", [0])


GATHER = """\
Thread {{0}} (active): "MainThread"
    all_gather_into_tensor (torch/distributed/distributed_c10d.py:3831)
    gather (accelerate/utils/operations.py:441)
    {0} (train.py:266)
    <module> (train.py:80)"""
OF_ONE = ["log_if_main", "report_on_rank_zero", "rank0_only_eval", "validate_only_on_main"]
PAIR = [f"rank {rank} (pid 550{rank}): 122 shards" for rank in range(2)]


def paste_pair(*stacks: str, waiting: tuple[int, ...] = (1,), prefix: str = "") -> list[str]:
    heads = [f"# rank {rank}, py-spy dump --pid 550{rank}" for rank in range(2)]
    shown = [
        line
        for rank, stack in enumerate(stacks)
        for line in (heads[rank], *stack.format(f"550{rank}").split("\n"))
    ]
    return [f"{prefix}{line}" for line in (*map(WAIT.format, waiting), *shown, *PAIR)]


@pytest.mark.parametrize("name", OF_ONE)
@pytest.mark.parametrize("prefix", ["", "> "])
def test_first_rank_of_two_in_a_function_of_its_own_is_named(
    tmp_path: Path, name: str, prefix: str
) -> None:
    lines = paste_pair(GATHER.format(name), ENGINE, prefix=prefix)
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H102", [0])
    assert (finding.victims.ranks, finding.where[0].line) == ("1", 266)


def test_first_rank_of_many_in_a_function_of_its_own_made_a_call_more(tmp_path: Path) -> None:
    lines = paste(GATHER.format(OF_ONE[0]), ENGINE, ENGINE, ENGINE, waiting=(1, 2, 3))
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H102", [0])


@pytest.mark.parametrize(
    ("stacks", "waiting"),
    {
        "other names": ((GATHER.format("log_main"), ENGINE), (1,)),
        "both in it": ((GATHER.format(OF_ONE[0]), GATHER.format(OF_ONE[0])), (1,)),
        "second rank": ((ENGINE, GATHER.format(OF_ONE[0])), (0,)),
        "who waits": ((GATHER.format(OF_ONE[0]), ENGINE), (0,)),
        "at work": (
            (GATHER.format(OF_ONE[0]).replace("all_gather_into", "write_all_to"), ENGINE),
            (),
        ),
        "no limit": ((GATHER.format(OF_ONE[0]), ENGINE), ()),
    }.values(),
)
def test_one_of_two_ranks_is_not_named_without_a_reason(
    tmp_path: Path, stacks: tuple[str, str], waiting: tuple[int, ...]
) -> None:
    report = say(tmp_path, *paste_pair(*stacks, waiting=waiting))

    assert all(one.code != "H102" for one in report.findings)


def test_first_rank_that_works_in_a_function_of_its_own_made_no_call(tmp_path: Path) -> None:
    work = GATHER.format(OF_ONE[0]).replace(
        "all_gather_into_tensor (torch/distributed/distributed_c10d.py:3831)", "dump (json.py:9)"
    )
    report = say(tmp_path, *paste_pair(work, ENGINE))

    assert all(one.code != "H102" for one in report.findings)
