"""Marks of real jobs: what `whystuck run --marks` leaves, and how it is switched."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.launch.running import END, WHYSTUCK, clean_environment, run_whystuck, torchrun

from whystuck.evidence.ops.marks import (
    BACKWARD,
    DATALOADER,
    FORWARD,
    KINDS,
    OPTIMIZER,
    STEP,
    USER,
    Marks,
    slice_ranks,
)
from whystuck.pipeline import read_evidence

TRAIN = """
import hashlib, os, sys, time
import torch, torch.distributed as dist
import whystuck
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1600
    def __getitem__(self, index):
        return torch.full((8,), index % 7 / 7)
def train(steps=12, accumulate=2, pause_s=0.0):
    rank = dist.get_rank()
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    half = list(model.parameters())[:2], list(model.parameters())[2:]
    optimizers = [torch.optim.SGD(half[0], lr=0.01), torch.optim.AdamW(half[1], lr=0.01)]
    loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2)
    batches = iter(loader)
    for step in range(steps):
        with whystuck.mark("accumulate"):
            for part in range(accumulate):
                ddp(next(batches)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(pause_s)
        if step == 5:
            import torch.distributed.checkpoint as dcp
            torch.save(model.state_dict(), f"{sys.argv[1]}/model-{rank}.pt")
            dcp.save({"model": model.state_dict()}, checkpoint_id=f"{sys.argv[1]}/dcp")
    text = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
    print(rank, hashlib.sha256(text).hexdigest(), flush=True)
"""
MAIN = """
dist.init_process_group("gloo")
"""


def _count(marks: Marks, rank: int) -> Counter[tuple[str, str]]:
    rows = slice_ranks(marks)[rank]
    pairs = zip(marks.kind[rows].tolist(), marks.name[rows].tolist(), strict=True)
    return Counter((KINDS[kind], marks.names[name]) for kind, name in pairs)


def test_job_leaves_the_phases_of_all_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN + MAIN + "train()\n" + END)
    done = run_whystuck(
        "run", "--marks", "--evidence", "ev", "--", *torchrun(2, script, str(tmp_path)),
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    marks = read_evidence(tmp_path / "ev").marks
    assert [(log.rank, log.dropped, log.torn, log.lost_names) for log in marks.logs] == [
        (0, 0, 0, 0),
        (1, 0, 0, 0),
    ]
    for rank in (0, 1):
        assert _count(marks, rank) == {
            ("step", ""): 24,
            ("dataloader", "iter"): 1,
            ("dataloader", "next"): 24,
            ("forward", "DistributedDataParallel"): 24,
            ("backward", "backward"): 24,
            ("optimizer", "SGD"): 12,
            ("optimizer", "AdamW"): 12,
            ("checkpoint", "torch.save"): 1,
            ("checkpoint", "dcp.save"): 1,
            ("user", "accumulate"): 12,
        }
        (note,) = marks.logs[rank].notes
        assert (note.kinds, note.step) == (frozenset(range(7)), 0)
        rows = slice_ranks(marks)[rank]
        assert (np.diff(marks.begin_ns[rows]) >= 0).all()
        assert (marks.end_ns[rows] >= marks.begin_ns[rows]).all()
    # They are told by the clock of the op log: a collective that DDP issues lies within a backward.
    ops = read_evidence(tmp_path / "ev").ops
    for rank in (0, 1):
        is_backward = (marks.rank == rank) & (marks.kind == BACKWARD)
        issued = ops.enqueued_ns[(ops.rank == rank) & (ops.step > 4) & (ops.step < 10)]
        begin, end = marks.begin_ns[is_backward], marks.end_ns[is_backward]
        inside = [bool(((begin < at) & (at < end)).any()) for at in issued.tolist()]
        assert inside
        assert all(inside)


@pytest.mark.slow
def test_spawned_ranks_have_marks_and_their_helpers_none(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        TRAIN
        + """
import torch.multiprocessing as mp
def run(rank):
    dist.init_process_group("gloo", f"file://{sys.argv[1]}/store", rank=rank, world_size=2)
    train()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(run, nprocs=2)
"""
    )
    done = run_whystuck(
        "run", "--marks", "--evidence", "ev", "--", "python", str(script), str(tmp_path),
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    marks = read_evidence(tmp_path / "ev").marks
    assert [log.rank for log in marks.logs] == [0, 1]
    for rank in (0, 1):
        counts = _count(marks, rank)
        assert (counts["step", ""], counts["dataloader", "next"]) == (24, 24)


@pytest.mark.slow
def test_rank_that_hangs_in_a_phase_is_found_there(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        TRAIN.replace(
            "        return torch.full",
            "        if index == 40 and os.environ['RANK'] == '1':\n"
            "            time.sleep(1000)\n"
            "        return torch.full",
        ).replace("num_workers=2", "num_workers=0")
        + MAIN
        + "train(steps=100)\n"
        + END
    )
    done = run_whystuck(
        "run", "--marks", "--stall-after", "6", "--on-stall", "kill", "--evidence", "ev", "--",
        *torchrun(2, script, str(tmp_path)), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 124, done.stderr.decode()[-3000:]
    marks = read_evidence(tmp_path / "ev/incidents/000").marks
    assert [log.rank for log in marks.logs] == [0, 1]
    is_open = marks.end_ns == 0
    kinds = [
        (int(rank), KINDS[kind])
        for rank, kind in zip(marks.rank[is_open], marks.kind[is_open], strict=True)
        if kind != USER
    ]
    assert kinds in ([(0, "backward"), (1, "dataloader")], [(0, "forward"), (1, "dataloader")])


def _run_flapping(tmp_path: Path, script: Path, file: Path | None) -> tuple[list[str], Path]:
    evidence = tmp_path / ("flapping" if file else "plain")
    options = ["--switch-file", str(file)] if file else []
    process = subprocess.Popen(
        [
            *WHYSTUCK, "run", "--evidence", str(evidence), *options, "--",
            *torchrun(2, script, str(tmp_path)),
        ],
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    turn = 0
    while process.poll() is None:
        if file is not None:
            turn += 1
            words = ("on", "off") if turn % 2 else ("off", "on")
            part = file.with_name("part")
            part.write_text(json.dumps({"marks": words[0], "dataloader": words[turn % 3 == 0]}))
            part.replace(file)
        time.sleep(1)
    out, err = process.communicate()
    assert process.returncode == 0, err.decode()[-3000:]
    return sorted(out.decode().splitlines()), evidence


@pytest.mark.slow
def test_weights_are_the_same_to_the_bit_while_marks_flap(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN + MAIN + "train(steps=400, pause_s=0.05)\n" + END)
    plain, _ = _run_flapping(tmp_path, script, None)
    flapping, evidence = _run_flapping(tmp_path, script, tmp_path / "switch.json")
    assert plain == flapping
    assert len(plain) == 2
    assert len(plain[0].split()[1]) == len(hashlib.sha256().hexdigest())
    marks = read_evidence(evidence).marks
    notes = [{(note.generation, note.step) for note in log.notes} for log in marks.logs]
    assert len(notes) == 2
    both = {generation for generation, _ in notes[0]} & {generation for generation, _ in notes[1]}
    assert len(both) >= 3, "it was not switched often"
    steps = [dict(one) for one in notes]
    assert all(steps[0][one] == steps[1][one] for one in both), "at the same step"
    kinds = set(marks.kind.tolist())
    # Whether a save falls into a second in which marks are on is a matter of luck.
    assert {STEP, DATALOADER, FORWARD, BACKWARD, OPTIMIZER, USER} <= kinds
