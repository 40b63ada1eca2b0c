"""Pasted stacks beside source: which call one rank alone makes, and in which order others do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

HEADS = {
    "env": "Process 412{0}: python train.py --ema   [env RANK={0}]",
    "env before": "Process 412{0}: RANK={0} WORLD_SIZE=3 python train.py",
    "comment": "Process 412{0}: python train.py   # rank {0}",
    "arrow": "Process 412{0}: python train.py  <-- rank {0}",
    "brackets": "Process 412{0}: python train.py (rank {0})",
    "option": "Process 412{0}: python train.py --rank={0} --x 1",
}
ALONE = """\
    barrier (torch/distributed/distributed_c10d.py:4628)
    wrapper (torch/distributed/c10d_logger.py:81)
    save_ema (ckpt.py:44)
    on_eval_end (train.py:212)
    fit (train.py:187)
    <module> (train.py:260)"""
OTHERS = """\
    broadcast (torch/distributed/distributed_c10d.py:2714)
    _sync_buffers (torch/nn/parallel/distributed.py:2181)
    forward (torch/nn/parallel/distributed.py:1635)
    fit (train.py:171)
    <module> (train.py:260)"""
TAIL = "    log.info('saved %s', path)\n    # nobody may read half of it\n    dist.barrier()\n"
SAVES = {
    "early return": f"def save_ema(ema, path, rank):\n    if rank != 0:\n        return\n"
    f"    tmp = path\n    torch.save(ema, tmp)\n\n{TAIL}",
    "by torch": f"def save_ema(ema, path):\n    if dist.get_rank() > 0:\n        return\n"
    f"    tmp = path\n    torch.save(ema, tmp)\n\n{TAIL}",
    "not main": f"def save_ema(ema, path):\n    if not is_main_process():\n        return None\n"
    f"    tmp = path\n    torch.save(ema, tmp)\n\n{TAIL}",
    "inside": "def save_ema(ema, path, rank):\n\n\n\n\n    if rank == 0:\n"
    "        torch.save(ema, path)\n        log.info('saved')\n        dist.barrier()\n",
}
SHOWN = {
    "sed": "hpc-a3:~/run$ sed -n 36,44p ckpt.py\n",
    "awk": "$ awk 'NR>=36 && NR<=44' ckpt.py\n",
    "said": "ckpt.py:36-44\n",
}


def paste(folder: Path, source: str, head: str = HEADS["env"], ranks: int = 3) -> Report:
    lines = []
    for rank in range(ranks):
        lines += [head.format(rank), "Python v3.12.3 (/usr/bin/python3.12)", ""]
        lines += [f'Thread 412{rank} (active): "MainThread"', OTHERS if rank else ALONE, ""]
    return say(folder, *lines, source, "$ tail -1 run.log", "08:19 | rank0 | ema saved")


def number(source: str) -> str:
    return "ckpt.py\n" + "\n".join(
        f"{36 + at:5} {one}" for at, one in enumerate(source.split("\n"))
    )


@pytest.mark.parametrize("head", HEADS)
def test_rank_is_read_beside_the_command_of_a_process(tmp_path: Path, head: str) -> None:
    report = paste(tmp_path, SHOWN["sed"] + SAVES["early return"], HEADS[head])
    finding = first_of(report)

    assert (finding.name, finding.culprits.ranks) == ("extra-collective", [0])
    assert finding.where[0].line == 44
    assert finding.details["code"] == {"ckpt.py:44": "dist.barrier()"}


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("shown", [*SHOWN, "numbered"])
def test_barrier_that_one_rank_alone_comes_to_is_extra(
    tmp_path: Path, save: str, shown: str
) -> None:
    text = number(SAVES[save]) if shown == "numbered" else SHOWN[shown] + SAVES[save]
    finding = first_of(paste(tmp_path, text))

    assert (finding.name, finding.culprits.ranks) == ("extra-collective", [0])


ON_ALL = {
    "after the branch": "def save_ema(ema, path, rank):\n    if rank == 0:\n"
    "        torch.save(ema)\n\n\n\n\n\n    dist.barrier()\n",
    "by another condition": "def save_ema(ema, path, rank):\n    if not path:\n        return\n"
    "\n\n\n\n\n    dist.barrier()\n",
    "other file": "",
}


@pytest.mark.parametrize("save", ON_ALL)
def test_barrier_that_all_come_to_blames_nobody(tmp_path: Path, save: str) -> None:
    report = paste(tmp_path, SHOWN["sed"] + ON_ALL[save])

    assert not {rank for one in report.findings for rank in one.culprits.ranks}


def test_rank_of_an_adapter_is_no_rank(tmp_path: Path) -> None:
    head = "Process 412{0}: python train.py --lora-rank 8 --lora_rank=16 group_rank=3 R_RANK={0}"
    report = paste(tmp_path, SHOWN["sed"] + SAVES["early return"], head)

    assert not {rank for one in report.findings for rank in one.culprits.ranks}
