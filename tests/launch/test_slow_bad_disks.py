"""A slow rank is found and told while the disk of the evidence is full, or does not answer."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
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


TOLD = b"whystuck: rank 1 is late in "


@dataclass
class BadDisk:
    """Where the evidence lies: ``spoil`` lets the disk fail from now on, ``backing`` shows it."""

    kind: str
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
            yield BadDisk("full", path, path, lambda: fill(filler), lambda: None)
        elif request.param == "frozen":
            frozen = stack.enter_context(freezable_disk(tmp_path))
            yield BadDisk("frozen", frozen.path, frozen.path, frozen.freeze, frozen.thaw)
        else:
            served = stack.enter_context(shared_disk(tmp_path))
            backing = served.path.with_name("backing")
            yield BadDisk("served", served.path, backing, served.is_open.clear, served.is_open.set)


@dataclass
class Job:
    """The job, bare or watched, whose output goes to files: who watches it may outlive it."""

    process: subprocess.Popen[bytes]
    out: Path
    errors: Path

    def list_lines(self) -> list[bytes]:
        """Return what the ranks have printed, whichever came first."""
        return sorted(self.out.read_bytes().splitlines())


def start(place: Path, name: str, before: Sequence[str]) -> Job:
    out, errors = place / f"{name}.out", place / f"{name}.err"
    with out.open("wb") as one, errors.open("wb") as two:
        process = subprocess.Popen(
            [*before, *torchrun(2, place / "train.py")],
            cwd=place, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=one, stderr=two,
        )  # fmt: skip
    return Job(process, out, errors)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the look", "at the incident"])
@pytest.mark.parametrize("disk", ["full", "frozen", "served"], indirect=True)
def test_job_is_as_without_it(disk: BadDisk, moment: str, tmp_path: Path) -> None:
    place = tmp_path / "local"
    place.mkdir()
    (place / "train.py").write_text(JOB + END)
    everything = ["--marks", "--comm", "on", "--inspect", "finite"]
    run = [*WHYSTUCK, "run", *everything, "--evidence", str(disk.path / "ev"), "--"]
    bare, watched = start(place, "bare", []), start(place, "watched", run)
    try:
        wait_for(lambda: b"step 20 " in watched.out.read_bytes(), 100)
        wait_for((disk.backing / "ev/job.json").exists)
        if moment == "at the incident":
            wait_for(lambda: list(disk.backing.glob("ev/incidents/*")), 100)
        disk.spoil()
        assert bare.process.wait(200) == 0
        # While nothing answers.
        assert watched.process.wait(60) == 0, watched.errors.read_text()
        is_told = TOLD in watched.errors.read_bytes()
        disk.mend()
        assert watched.list_lines() == bare.list_lines()
        said = watched.errors.read_bytes().splitlines()
        assert set(bare.errors.read_bytes().splitlines()) <= set(said), said
        # Of a disk of this node that does not answer, reports are made on it.
        assert is_told or disk.kind == "frozen" or moment == "at the incident", said
    finally:
        disk.mend()
        for one in (bare, watched):
            one.process.kill()
            one.process.wait()
