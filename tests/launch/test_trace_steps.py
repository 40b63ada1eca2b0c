"""Traces on demand of real jobs: their steps are those of the optimizers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.launch.running import END, WHYSTUCK, clean_environment, run_whystuck, torchrun
from tests.probe.kineto.fabric import wait_until

from whystuck.pipeline import analyze_traces

START = """\
import datetime
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
rank = dist.get_rank()
stop = torch.zeros(1)


def ends(step):
    # Seldom, so that each step has one collective of its own.
    if step % 50 == 0:
        stop[0] = float(rank == 0 and os.path.exists("stop"))
        dist.all_reduce(stop)
        if step:
            open(f"steps-{rank}", "w").close()
    return bool(stop[0])


step = 0
"""
LATE = (
    START
    + """\
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while not ends(step):
    step += 1
    optimizer.zero_grad()
    with model.no_sync():
        model(torch.randn(8, 64)).sum().backward()
    time.sleep(0.25 if rank == 1 else 0.0)  # much more than what a busy machine adds
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
"""
    + END
)
TWO_OPTIMIZERS = (
    START
    + """\
models = [DistributedDataParallel(torch.nn.Linear(64, size)) for size in (64, 8)]
optimizers = [
    torch.optim.SGD(models[0].parameters(), lr=1e-3), torch.optim.Adam(models[1].parameters())
]
while not ends(step):
    step += 1
    time.sleep(0.01)
    for model, optimizer in zip(models, optimizers):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
"""
    + END
)


@contextmanager
def running(folder: Path, script: str) -> Iterator[int]:
    """Run a job of two ranks that steps already; yield its pid, and see that it ends well."""
    (folder / "train.py").write_text(script)
    command = [
        *WHYSTUCK,
        "run",
        "--evidence",
        "evidence",
        "--",
        *torchrun(2, folder / "train.py", is_traced=True),
    ]
    with (folder / "out").open("wb") as out:
        job = subprocess.Popen(
            command, cwd=folder, env=clean_environment(), stdout=out, stderr=subprocess.STDOUT
        )
        try:
            wait_until(lambda: all((folder / f"steps-{rank}").exists() for rank in (0, 1)))
            yield job.pid
            (folder / "stop").touch()
            assert job.wait(timeout=120) == 0, (folder / "out").read_text()
        finally:
            job.kill()
            job.wait()


def trace(folder: Path, pid: int, *what: str) -> str:
    """Trace the job on demand; the folder with the files."""
    made = folder / "-".join(("traces", *what)).replace("--", "")
    ended = run_whystuck(
        "trace", "start", "--pid", str(pid), *what, "--wait", "-o", made, cwd=folder
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return str(made)


@pytest.mark.slow
def test_steps_of_a_trace_on_demand_are_counted_and_compared(tmp_path: Path) -> None:
    with running(tmp_path, LATE) as pid:
        five = trace(tmp_path, pid, "--iterations", "5")
        twelve = trace(tmp_path, pid, "--iterations", "12")
        timed = trace(tmp_path, pid, "--duration", "1.9")

    # Each step has two batches, and ends with its optimizer.
    for place, count in ((five, 5), (twelve, 12)):
        report, read = analyze_traces([place])
        assert report.traces.steps == count
        assert set(read.summary.get("steps")["mark"]) == {"optimizer"}
        assert report.traces.step_ms > 250
        (late,) = [item for item in report.findings if item.code == "P504"]
        assert late.culprits.ranks == [1]
        assert late.measures["lost_ms_per_step"] == pytest.approx(250, rel=0.3)
    # Of a time, the steps at both ends are cut.
    cut, _ = analyze_traces([timed])
    assert 2 <= cut.traces.steps <= 7
    assert cut.traces.step_ms > 250
    compared = run_whystuck("trace", "diff", five, twelve, "--threshold", "50", cwd=tmp_path)
    assert compared.returncode == 0, compared.stdout.decode()
    assert b"by 5 and 12 steps" in compared.stdout or b"below 50 %" in compared.stdout


def test_two_optimizers_that_take_turns_make_one_step(tmp_path: Path) -> None:
    with running(tmp_path, TWO_OPTIMIZERS) as pid:
        place = trace(tmp_path, pid, "--iterations", "8")

    report, _ = analyze_traces([place])

    assert report.traces.steps in (3, 4)
    assert report.traces.step_ms > 10
