"""A slow rank is found and told while the disk of the evidence is full, or does not answer."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.disks import fill, freezable_disk, small_disk
from tests.launch.running import END, WHYSTUCK, clean_environment, torchrun
from tests.launch.simulated import wait_for
from tests.shared_disk import shared_disk

JOB = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(550):
    time.sleep(0.06 if rank == 1 and step >= 30 else 0.01)
    loss = model(torch.ones(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if not step % 10:
        os.write(1, f"rank {rank} step {step} {loss.item():.9f}\\n".encode())
os.write(2, f"rank {rank} has trained\\n".encode())
dist.barrier()
"""


@dataclass
class BadDisk:
    """Where the evidence lies: ``spoil`` lets the disk fail from now on, ``backing`` shows it."""

    path: Path
    backing: Path
    spoil: Callable[[], None]
    mend: Callable[[], None]


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BadDisk]:
    """A disk of a kind that can be spoiled."""
    with ExitStack() as stack:
        if request.param == "full":
            path = stack.enter_context(small_disk("size=2m"))
            filler = path / "filler"
            yield BadDisk(path, path, lambda: fill(filler), lambda: None)
        elif request.param == "frozen":
            frozen = stack.enter_context(freezable_disk(tmp_path))
            yield BadDisk(frozen.path, frozen.path, frozen.freeze, frozen.thaw)
        else:
            served = stack.enter_context(shared_disk(tmp_path))
            backing = served.path.with_name("backing")
            yield BadDisk(served.path, backing, served.is_open.clear, served.is_open.set)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the look", "at the incident"])
@pytest.mark.parametrize("disk", ["full", "frozen", "served"], indirect=True)
def test_job_is_as_without_it(disk: BadDisk, moment: str, tmp_path: Path) -> None:
    place = tmp_path / "local"
    place.mkdir()
    (place / "train.py").write_text(JOB + END)
    everything = ["--marks", "--comm", "on", "--inspect", "finite"]
    run = [*WHYSTUCK, "run", *everything, "--evidence", str(disk.path / "ev"), "--"]

    bare, watched = (
        subprocess.Popen(
            [*before, *torchrun(2, place / "train.py")], cwd=place, env=clean_environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for before in ([], run)
    )  # fmt: skip
    try:
        assert watched.stdout is not None
        first = watched.stdout.readline()
        incidents = disk.backing / "ev/incidents"
        wait_for((disk.backing / "ev/job.json").exists)
        if moment == "at the incident":
            wait_for(lambda: list(incidents.glob("*")), 100)
        disk.spoil()
        out, errors = watched.communicate(timeout=200)
        wanted, wanted_errors = bare.communicate(timeout=200)
    finally:
        disk.mend()
        for one in (bare, watched):
            one.kill()
            one.communicate()

    assert bare.returncode == 0, wanted_errors
    assert watched.returncode == 0, errors
    assert sorted((first + out).splitlines()) == sorted(wanted.splitlines())
    for line in wanted_errors.splitlines():
        assert line in errors.splitlines()
    assert b"whystuck: rank 1 is late in " in errors
