"""Stacks of all ranks beside watchdogs of most: who is in another collective left the others."""

from __future__ import annotations

from pathlib import Path

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
