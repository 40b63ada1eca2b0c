"""Counts of the calls of each rank, and how people say whose the stacks beside them are."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say
from tests.logs.test_who import WAIT

from whystuck.evidence.finding import Confidence

SYNC = [
    'Thread 40{0} (active): "MainThread"',
    "    synchronize (torch/cuda/__init__.py:892)",
    "    validate (asr/val.py:141)",
    "    <module> (train.py:81)",
]
GATHER = [
    'Thread 40{0} (active): "MainThread"',
    "    all_gather_object (torch/distributed/distributed_c10d.py:2449)",
    "    wrapper (torch/distributed/c10d_logger.py:79)",
    "    gather_hyps (asr/val.py:163)",
    "    <module> (train.py:81)",
]
INPUT = [
    'Thread 40{0} (idle): "MainThread"',
    "    read (asr/io.py:20)",
    "    <module> (train.py:81)",
]
HEADS = {
    "calls": "counters i print at the stall (all_reduce calls made in validate):",
    "count": "allreduce count when it hangs:",
    "number": "hung; number of all-reduces that each rank has called",
    "issued": "collectives issued at the deadlock:",
}
LINE = {
    "words": ["rank0 412  rank1 412", "rank2 411  rank3 412"],
    "short": ["r0=412 r1=412 r2=411 r3=412"],
    "rows": ["rank 0: 412", "rank 1: 412", "rank 2: 411", "rank 3: 412"],
    "calls": [
        "[rank0]: 412 calls",
        "[rank1]: 412 calls",
        "[rank2]: 411 calls",
        "[rank3]: 412 calls",
    ],
}


IN_ORDER = "all_reduce calls per rank: [412, 412, 411, 412]"


def show(number: int, stack: list[str]) -> list[str]:
    return [f"rank {number}:", *(line.format(number) for line in stack), ""]


def judge(folder: Path, *lines: str) -> tuple[str, list[int], Confidence]:
    finding = first_of(say(folder, *lines))
    return finding.code, finding.culprits.ranks, finding.confidence


@pytest.mark.parametrize("line", LINE)
@pytest.mark.parametrize("head", HEADS)
def test_rank_with_a_call_fewer_that_is_further_on_left_one_out(
    tmp_path: Path, head: str, line: str
) -> None:
    stacks = [one for rank in (0, 1, 3) for one in show(rank, SYNC)]
    found = judge(tmp_path, *stacks, *show(2, GATHER), HEADS[head], *LINE[line])

    assert found == ("H127", [2], Confidence.LIKELY)


@pytest.mark.parametrize("line", LINE)
def test_rank_with_a_call_fewer_that_is_elsewhere_never_joined(tmp_path: Path, line: str) -> None:
    stacks = [one for rank in (0, 1, 3) for one in show(rank, SYNC)]
    found = judge(tmp_path, *stacks, *show(2, INPUT), HEADS["calls"], *LINE[line])

    assert found[:2] == ("H101", [2])


def test_numbers_in_the_order_of_ranks(tmp_path: Path) -> None:
    waits = [WAIT.format(rank) for rank in (0, 1, 3)]
    for told in (
        "all_reduce calls per rank: [412, 412, 411, 412]",
        "collective calls per rank = 412 412 411 412",
    ):
        assert judge(tmp_path, *waits, told)[:2] == ("H101", [2])


def test_counts_that_each_rank_prints_of_itself(tmp_path: Path) -> None:
    own = [f"[rank{rank}]: all_reduce calls in epoch 3: {412 - (rank == 2)}" for rank in range(4)]
    waits = [WAIT.format(rank) for rank in (0, 1, 3)]

    assert judge(tmp_path, *own, *waits)[:2] == ("H101", [2])
    # Who gave up the same op as the others has come to it.
    report = say(tmp_path, *own, *waits, WAIT.format(2))
    assert not {rank for one in report.findings for rank in one.culprits.ranks}


TABLE = ["rank | all_reduce | all_gather | loss", *(f"{one} | 412 | 3 | 5" for one in range(3))]


@pytest.mark.parametrize("bars", [" | ", "  ", ","])
def test_table_with_a_column_for_each_op(tmp_path: Path, bars: str) -> None:
    lines = [line.replace(" | ", bars) for line in (*TABLE, "3 | 411 | 4 | 5")]
    found = judge(tmp_path, WAIT.format(0), "how many calls so far:", *lines)

    assert found[:2] == ("H127", [3])


def test_table_of_times_counts_no_calls(tmp_path: Path) -> None:
    for head in ("ms of each op:", "mean times, all_reduce calls included"):
        report = say(tmp_path, WAIT.format(0), head, *TABLE, "3 | 411 | 4 | 5")
        assert "H127" not in {one.code for one in report.findings}


def test_rank_with_a_call_more_made_one_that_nobody_else_did(tmp_path: Path) -> None:
    lines = ["r0=412 r1=412 r2=413 r3=412"]
    stacks = [one for rank in (0, 1, 3) for one in show(rank, INPUT)]
    found = judge(tmp_path, *stacks, *show(2, GATHER), "all_gather calls made when stuck:", *lines)

    assert found[:2] == ("H102", [2])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(["r0=412 r1=412 r2=412 r3=412"], id="all alike"),
        pytest.param(["r0=412 r1=412 r2=411 r3=411"], id="two sides"),
        pytest.param(["r0=412 r1=411"], id="two ranks"),
        pytest.param(["r0=412 r1=412 r2=6 r3=412"], id="far apart"),
        pytest.param(["r0=412 ms r1=412 ms r2=411 ms r3=412 ms"], id="times"),
        pytest.param(["r0=412.0 r1=412.5 r2=411.1 r3=412.9"], id="fractions"),
    ],
)
def test_counts_that_tell_nothing_name_nobody(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, WAIT.format(0), HEADS["calls"], *lines)

    assert not {rank for one in report.findings for rank in one.culprits.ranks}


def test_counts_of_a_job_that_runs_name_nobody(tmp_path: Path) -> None:
    report = say(tmp_path, "step 9 loss 0.5", IN_ORDER)

    assert not report.findings


# How people say that several ranks have the stack that they show.
ALIKE = {
    "dots": ["(ranks 0..1 look all the same, here is rank 0)", *SYNC, "rank 3: same as rank 0"],
    "each": ["rank 0:", *SYNC, "rank 1: same", "rank 3: same as rank 1"],
    "hosts": [
        "--- node1",
        "rank 0:",
        *SYNC,
        "--- node2",
        "rank 1: same as rank 0",
        "rank 3: ditto",
    ],
    "list": ["rank 0:", *SYNC, "ranks 1,3: identical"],
    "pids": [
        "== rank 0 (pid 400)",
        *SYNC,
        "== rank 1 (pid 2002): same as rank 0",
        "== rank 3 (pid 2004): same as rank 0",
    ],
}


@pytest.mark.parametrize("way", ALIKE)
def test_ranks_that_are_said_to_be_alike_are_seen(tmp_path: Path, way: str) -> None:
    lines = [line.format(0) for line in ALIKE[way]]
    report = say(tmp_path, *lines, *show(2, GATHER), HEADS["calls"], *LINE["short"])

    assert report.coverage.ranks_seen == 4
    assert (first_of(report).code, first_of(report).culprits.ranks) == ("H127", [2])


# A rank that is like one of others, behind the stack of another one.
OF_ANOTHER = {
    "pid": "== rank 3 (pid 2004): same as rank 0",
    "sentence": "rank 3 (after the restart) has the same stack as rank 0",
}


@pytest.mark.parametrize("line", OF_ANOTHER.values(), ids=OF_ANOTHER)
def test_rank_has_the_stack_of_the_rank_that_is_named(tmp_path: Path, line: str) -> None:
    shown = [*show(0, GATHER), *show(1, GATHER), *show(2, INPUT)]
    finding = first_of(say(tmp_path, *shown, line))

    assert (finding.culprits.ranks, finding.victims.ranks) == ([2], "0-1,3")


def test_rank_that_is_said_not_to_be_alike_is_not_seen(tmp_path: Path) -> None:
    lines = [line.format(0) for line in ["rank 0:", *SYNC, "rank 1 is not the same as rank 0"]]
    report = say(tmp_path, *lines)

    assert report.coverage.ranks_seen == 1


OBJECTS = [
    'Thread 50{0} (idle): "MainThread"',
    "    all_gather (torch/distributed/distributed_c10d.py:3130)",
    "    {op} (torch/distributed/distributed_c10d.py:2841)",
    "    wrapper (torch/distributed/c10d_logger.py:83)",
    "    share_names (ev.py:31)",
]
SUMS = [
    'Thread 50{0} (idle): "MainThread"',
    "    all_reduce (torch/distributed/distributed_c10d.py:2501)",
    "    wrapper (torch/distributed/c10d_logger.py:83)",
    "    mean_of_ranks (ev.py:58)",
]


def show_objects(op: str) -> list[str]:
    return [line.replace("{op}", op) for line in OBJECTS]


@pytest.mark.parametrize("op", ["gather_object", "all_gather_object"])
@pytest.mark.parametrize("odd", [0, 3])
@pytest.mark.parametrize("head", ["rank {0}:", "== rank {0} =="])
def test_rank_that_gathers_objects_alone_is_named(
    tmp_path: Path, op: str, odd: int, head: str
) -> None:
    lines = []
    for rank in range(4):
        stack = show_objects(op) if rank == odd else SUMS
        lines += [head.format(rank), *(line.format(rank) for line in stack[1:]), ""]

    assert judge(tmp_path, *lines) == ("H105", [odd], Confidence.POSSIBLE)


def test_rank_that_may_wait_for_another_one_or_is_one_of_few_is_not_named(
    tmp_path: Path,
) -> None:
    sums = [line for rank in (0, 1, 3) for line in show(rank, SUMS)]
    # The ranks that others gather from are past the call at once.
    inside = [line for line in show_objects("gather_object") if "all_gather" not in line]
    assert judge(tmp_path, *sums, *show(2, inside))[1] == []
    pair = [*show(0, SUMS), *show(1, SUMS), *show(2, show_objects("gather_object"))]
    assert judge(tmp_path, *pair)[1] == []
    halves = [*pair, *show(3, show_objects("gather_object"))]
    assert judge(tmp_path, *halves)[1] == []
