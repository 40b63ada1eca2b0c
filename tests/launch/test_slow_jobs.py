"""Slow jobs that end well, are interrupted, or run on, and what a user then reads of them.

On gloo alone: ops on devices have no times.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.launch.running import END, WHYSTUCK, clean_environment, run_whystuck, torchrun

pytestmark = [pytest.mark.slow]

JOB = """
import sys, time
import torch, torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
steps = int(sys.argv[1])

def load(step):
    time.sleep(0.015 + (0.03 if rank == 1 else 0))

def train(steps):
    value = torch.ones(64)
    for step in range(steps):
        load(step)
        for _ in range(3):
            dist.all_reduce(value)  # <- here
            value.fill_(1)
        if rank == 0 and step == 40:
            print("MOVING", flush=True)

def train_with_join():
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    with Join([model]):
        for step in range(30 if rank == 0 else 90):
            time.sleep(0.03)
            model(torch.ones(2, 8)).sum().backward()

train(steps) if steps else train_with_join()
"""


def start(folder: Path, steps: int, launcher: list[str]) -> list[str]:
    path = folder / "train.py"
    path.write_text(JOB + END)
    return [*launcher, "run", "--evidence", "ev", "--", *torchrun(2, path, str(steps))]


def read_report(folder: Path, *command: str) -> dict[str, Any]:
    done = run_whystuck(*command, "--format", "json", cwd=folder)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def find_slow(report: dict[str, Any]) -> dict[str, Any]:
    """Return the only finding of a slow rank, which names rank 1 and its first op."""
    (finding,) = [one for one in report["findings"] if one["code"] == "S301"]
    line = next(place["line"] for place in finding["where"])
    assert JOB.splitlines()[line - 1].endswith("# <- here")
    assert finding["culprits"]["ranks"] == [1]
    assert finding["measures"]["lost_ms"] == pytest.approx(30, abs=15)
    found: dict[str, Any] = finding
    return found


def test_job_that_ended_well_names_the_rank_that_is_late_in_each_step(tmp_path: Path) -> None:
    command = start(tmp_path, 80, [])
    assert run_whystuck(*command, cwd=tmp_path).returncode == 0
    report = read_report(tmp_path, "diagnose", "ev")

    assert report["verdict"] == "slow"
    assert report["findings"] == [find_slow(report)]


def test_job_that_runs_or_was_interrupted_names_it_too(tmp_path: Path) -> None:
    with subprocess.Popen(
        start(tmp_path, 100_000, WHYSTUCK),
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == b"MOVING\n"
            live = read_report(tmp_path, "snapshot", "--pid", str(job.pid), "--evidence", "now")
            job.send_signal(signal.SIGINT)
            job.wait(timeout=60)
        finally:
            job.kill()

    assert live["verdict"] == "slow"
    find_slow(live)
    find_slow(read_report(tmp_path, "diagnose", "ev"))


def test_uneven_inputs_under_join_blame_nobody(tmp_path: Path) -> None:
    command = start(tmp_path, 0, [])
    assert run_whystuck(*command, cwd=tmp_path).returncode == 0
    report = read_report(tmp_path, "diagnose", "ev")

    # The rank without inputs waits: for the time that the other one is still at work.
    assert [one["code"] for one in report["findings"]] == ["S308"]
    assert report["findings"][0]["culprits"]["ranks"] == []
