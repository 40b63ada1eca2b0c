"""Pasted stacks beside source: few ranks are behind a call that all others wait in."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report
from whystuck.parse.logs.owners.process_words import list_rank_pids

WAIT = """\
    synchronize (torch/cuda/__init__.py:792)
    reduce_metrics (det/engine.py:141)
    train_step (det/engine.py:98)"""
CALL = """\
    all_reduce (torch/distributed/distributed_c10d.py:2219)
    wrapper (torch/distributed/c10d_logger.py:72)
    reduce_metrics (det/engine.py:138)
    train_step (det/engine.py:98)"""
CLIP = """\
    clip_grad_norm_ (torch/nn/utils/clip_grad.py:55)
    train_step (det/engine.py:109)"""
BUSY = """\
    draw_boxes (det/show.py:12)
    train_step (det/engine.py:109)"""
REST = """\
    train_one_epoch (det/engine.py:60)
    <module> (train_det.py:90)
"""
SOURCE = {
    "count": ["n_pos = sum(len(t) for t in targets)", "", "if n_pos > 0:"],
    "truth": ["has_boxes = targets.any()", "", "if has_boxes:"],
    "none": ["loss = criterion(out, targets)", "", "if loss is not None:"],
}
# How people say which process is which rank: a list of each, in the same order.
ORDERS = [
    "$ for p in 811 812 813 814; do py-spy dump --pid $p; done   # rank 0 1 2 3 dans cet ordre",
    "for pid in 811 812 813 814; do py-spy dump -p $pid | head -20; done  # ranks 0-3",
    "for p in 811 812 813 814 ; do echo; py-spy dump --pid $p; done (= ranks 0, 1, 2, 3)",
    "pids 811,812,813,814 = ranks 0..3",
    "pids 811-814 are ranks 0-3",
    "PIDs: 811 812 813 814 (rank 0/1/2/3)",
]


def show(test: list[str]) -> list[str]:
    """Write the source around the call."""
    lines = [*test, "    stats = reduce_metrics(losses)", "    meter.update(stats)"]
    listed = [f" {95 + at}      {one}" for at, one in enumerate(lines)]
    behind = " 109      torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)"
    return ["", "the code (det/engine.py):", *listed, "...", behind]


def paste(folder: Path, wait: str, own: str, source: list[str], order: str = ORDERS[0]) -> Report:
    lines = ["stuck since 25 min", order, ""]
    for rank in range(4):
        lines += [f"Process 81{rank + 1}: python -u train_det.py", "Python v3.10.12 (python)", ""]
        lines += [f'Thread 81{rank + 1} (active): "MainThread"']
        lines += [*(own if rank == 2 else wait).split("\n"), *REST.split("\n")]
    return say(folder, *lines, *source)


@pytest.mark.parametrize("test", SOURCE)
@pytest.mark.parametrize("wait", [WAIT, CALL])
def test_rank_behind_a_call_left_it_out(tmp_path: Path, wait: str, test: str) -> None:
    finding = first_of(paste(tmp_path, wait, CLIP, show(SOURCE[test])))

    assert (finding.name, finding.culprits.ranks) == ("skipped-collective", [2])
    assert finding.confidence == "likely"


def test_setting_is_the_same_on_all_ranks(tmp_path: Path) -> None:
    source = show(["out = model(images)", "", "if self.reduces_metrics:"])
    finding = first_of(paste(tmp_path, WAIT, CLIP, source))

    assert (finding.culprits.ranks, finding.confidence) == ([2], "possible")


def test_rank_that_computes_may_be_late(tmp_path: Path) -> None:
    finding = first_of(paste(tmp_path, WAIT, BUSY, show(SOURCE["count"])))

    assert (finding.culprits.ranks, finding.confidence) == ([2], "possible")


@pytest.mark.parametrize(
    "source",
    [[], show(["step = step + 1", "", "if step % 10 == 0:"]), show(["x = 1", "", "with amp():"])],
)
def test_without_a_condition_of_its_own_no_call_was_left_out(
    tmp_path: Path, source: list[str]
) -> None:
    report = paste(tmp_path, WAIT, CLIP, source)

    assert "skipped-collective" not in {one.name for one in report.findings}


@pytest.mark.parametrize("order", ORDERS)
def test_processes_and_ranks_are_listed_in_one_order(order: str) -> None:
    told = [(rank, 811 + rank, False) for rank in range(4)]

    assert list(list_rank_pids(order)) == told


@pytest.mark.parametrize(
    "text",
    [
        "for p in 811 812 813 814; do py-spy dump --pid $p; done   # rank 0 1 2",
        "for p in 811 812; do py-spy dump --pid $p; done  # rank 0 1, but maybe not in this order",
        "for p in 811 812; do py-spy dump --pid $p; done  # local rank 0 1",
        "pids 811 811 = ranks 0 1",
    ],
)
def test_lists_that_do_not_fit_tell_nothing(text: str) -> None:
    assert not [one for one in list_rank_pids(text) if not one[2]]
