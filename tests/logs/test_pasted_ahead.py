"""Pasted stacks in which few ranks are further on than all others, which wait for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.diagnose.scenes import MODULE, Job, at
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

C10D = "torch/distributed/distributed_c10d.py"
BACKWARD = ["_engine_run_backward (torch/autograd/graph.py:744)", "backward (torch/_tensor.py:525)"]
SYNC = ["synchronize (torch/cuda/__init__.py:801)"]
REDUCE = [f"all_reduce ({C10D}:2219)", "wrapper (torch/distributed/c10d_logger.py:72)"]
BARRIER = [f"barrier ({C10D}:3683)", "wrapper (torch/distributed/c10d_logger.py:75)"]


def inside(call: Sequence[str], line: int, *, called: int = 131) -> list[str]:
    return [*call, f"train_one_epoch (train.py:{line})", f"main (train.py:{called})"]


def behind(line: int = 134, call: Sequence[str] = BARRIER) -> list[str]:
    return [*call, f"main (train.py:{line})"]


def write(stacks: Mapping[int, Sequence[str]], head: str) -> list[str]:
    return [
        line
        for rank, frames in stacks.items()
        for line in (
            *head.format(rank=rank, pid=40211 + rank).splitlines(),
            f'Thread {40211 + rank} (active): "MainThread"',
            *(f"    {frame}" for frame in frames),
            "    <module> (train.py:150)",
        )
    ]


HEADS = {
    "command": "Process {pid}: python -u train.py --local_rank={rank}\nPython v3.10.12 (python3)",
    "comment": "$ py-spy dump -p {pid}   # rank {rank}",
    "title": "=== rank {rank}",
}
LEFT = {
    0: inside(BACKWARD, 88),
    1: inside(SYNC, 91),
    2: inside(SYNC, 91),
    3: behind(),
}


def judge(folder: Path, stacks: Mapping[int, Sequence[str]], head: str = "title") -> Report:
    return say(folder, "freezes at the end of epoch 0", *write(stacks, HEADS[head]))


def list_named(report: Report) -> set[int]:
    return {rank for one in report.findings for rank in one.culprits.ranks}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("prefix", ["", "> "])
def test_rank_behind_the_loop_that_others_are_in_left_it(
    tmp_path: Path, head: str, prefix: str
) -> None:
    lines = [f"{prefix}{line}" for line in write(LEFT, HEADS[head])]
    finding = first_of(say(tmp_path, "freezes at the end of epoch 0", *lines))

    assert (finding.code, finding.confidence) == ("H103", "possible")
    assert (finding.culprits.ranks, finding.victims.ranks) == ([3], "0-2")
    assert finding.where[0].line == 134


@pytest.mark.parametrize(
    "changed",
    [{3: behind(call=REDUCE)}, {0: inside(SYNC, 95)}, {0: inside(REDUCE, 93)}],
    ids=["in an all_reduce", "all wait for devices", "in one collective"],
)
def test_other_ways_to_wait_in_the_loop_tell_the_same(
    tmp_path: Path, changed: dict[int, list[str]]
) -> None:
    finding = first_of(judge(tmp_path, LEFT | changed))

    assert (finding.code, finding.culprits.ranks) == ("H103", [3])


READ = ["read (ssl.py:1167)", "fetch (data.py:31)"]
SENDS = [f"send ({C10D}:1884)", "send_forward (pp.py:41)"]


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({3: behind(130)}, id="before the call"),
        pytest.param({3: behind(call=SYNC)}, id="waits for its device"),
        pytest.param({2: behind()}, id="as many behind it"),
        pytest.param({3: [*BARRIER, "save (ckpt.py:12)", "other (run.py:134)"]}, id="elsewhere"),
        pytest.param({0: inside(REDUCE, 88), 1: inside(BACKWARD, 91)}, id="in two ops"),
        pytest.param({0: inside(SENDS, 88)}, id="in a pipeline"),
        pytest.param({0: inside(SYNC, 88, called=129)}, id="in two calls"),
        pytest.param({3: behind(call=SENDS)}, id="in a transfer"),
    ],
)
def test_rank_that_may_be_right_is_not_called_ahead(
    tmp_path: Path, changed: dict[int, list[str]]
) -> None:
    report = judge(tmp_path, LEFT | changed)

    assert all(one.code != "H103" for one in report.findings)
    assert 3 not in list_named(report)


def test_rank_that_is_at_work_explains_more_than_one_that_is_ahead(tmp_path: Path) -> None:
    report = judge(tmp_path, LEFT | {0: inside(READ, 71)})

    assert all(one.code != "H103" for one in report.findings)


def test_stacks_that_whystuck_took_itself_are_judged_by_what_it_measured() -> None:
    job = Job().of_kind("stall", stalled_s=60.0)
    for rank, frames in LEFT.items():
        stack = []
        for frame in frames:
            name, _, place = frame.partition(" (")
            file, _, line = place.rstrip(")").rpartition(":")
            root = "/venv/" if file.startswith("torch/") else "/job/"
            stack.append(at(f"{root}{file}", int(line), name))
        job.stands(rank, (*stack, MODULE))

    assert all(one.code != "H103" for one in job.report().findings)


GATHER = f"all_gather_into_tensor ({C10D}:2948)"
CLIP = "clip_grad_norm_ (torch/distributed/fsdp/fully_sharded_data_parallel.py:1121)"
STATES = {
    "FSDP": [
        GATHER,
        "_all_gather_flat_param (torch/distributed/fsdp/_flat_param.py:1436)",
        "_full_pre_state_dict_hook (torch/distributed/fsdp/_state_dict_utils.py:290)",
        "state_dict (torch/nn/modules/module.py:1887)",
    ],
    "FSDP2": [
        GATHER,
        "_gather_state_dict (torch/distributed/_state_dict_utils.py:241)",
        "get_model_state_dict (torch/distributed/checkpoint/state_dict.py:1020)",
    ],
    "DeepSpeed": [
        GATHER,
        "_zero3_consolidated_16bit_state_dict (deepspeed/runtime/engine.py:3501)",
        "save_16bit_model (deepspeed/runtime/engine.py:3572)",
    ],
}


def save_alone(folder: Path, call: Sequence[str], *, line: int = 203) -> Report:
    stacks = {rank: [CLIP, "train (train.py:190)"] for rank in range(1, 4)}
    return judge(folder, {0: [*call, f"train (train.py:{line})"], **stacks})


@pytest.mark.parametrize("tool", STATES)
def test_state_that_one_rank_alone_asks_for_is_a_collective_too_many(
    tmp_path: Path, tool: str
) -> None:
    finding = first_of(save_alone(tmp_path, STATES[tool]))

    assert (finding.code, finding.culprits.ranks) == ("H102", [0])
    assert finding.where[0].line == 203


def test_other_op_of_one_rank_is_no_state(tmp_path: Path) -> None:
    forward = [GATHER, "unshard (torch/distributed/fsdp/_flat_param.py:1370)", "forward (m.py:7)"]

    assert first_of(save_alone(tmp_path, forward)).code == "H105"


def test_barrier_of_one_rank_that_is_ahead_may_follow_from_what_it_left_out(tmp_path: Path) -> None:
    assert first_of(save_alone(tmp_path, BARRIER)).code == "H105"


def test_state_that_is_loaded_is_no_save(tmp_path: Path) -> None:
    load = [GATHER, "_load_state_dict (torch/distributed/checkpoint/state_dict_loader.py:150)"]

    assert first_of(save_alone(tmp_path, load)).code == "H105"


def test_rank_that_is_behind_with_a_state_is_not_named(tmp_path: Path) -> None:
    """It may be in it again, and the others may have left it out."""
    assert not list_named(save_alone(tmp_path, STATES["FSDP"], line=171))


@pytest.mark.parametrize("tool", STATES)
def test_state_that_one_rank_asks_for_while_the_others_are_at_the_barrier_behind(
    tmp_path: Path, tool: str
) -> None:
    barrier = [f"barrier ({C10D}:4159)", "train (train.py:121)"]
    stacks = {0: [*STATES[tool], "save (ckpt.py:31)", "train (train.py:120)"]}
    finding = first_of(judge(tmp_path, stacks | dict.fromkeys(range(1, 4), barrier)))

    assert (finding.code, finding.culprits.ranks) == ("H102", [0])
