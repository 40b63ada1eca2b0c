"""Jobs that ``torch.compile`` is at work in when an op is issued: it passes by our functions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launch.running import clean_environment
from tests.ports import find_port
from tests.probe.job import artifact, job_dir, start_rank

# DDP makes its buckets anew at the second step, by a broadcast: in a frame that is compiled.
JOB = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
model = torch.compile(torch.nn.parallel.DistributedDataParallel(model), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step(x):
    x = x * 2
    total = x.sum().clone()
    dist.broadcast(total, 0)
    dist.all_reduce(total)
    return x + total

step = torch.compile(step, backend="eager")
for _ in range(4):
    loss = model(step(torch.randn(4, 8))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex())
counters = torch._dynamo.utils.counters
for name in ("frames", "stats", "graph_break", "unimplemented"):
    print(name, sorted((kind, count) for kind, count in counters[name].items()))
print("trained", flush=True)
exec(sys.argv[1])
os._exit(0)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A job folder."""
    with job_dir() as made:
        yield made


def test_compiler_sees_none_of_the_kernels(tmp_path: Path, folder: Path) -> None:
    watched = start_rank(tmp_path, folder, script=JOB)
    environment = clean_environment(
        RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(find_port())
    )
    bare = subprocess.run(
        [sys.executable, tmp_path / "train.py", ""],
        env=environment, capture_output=True, check=False, timeout=240,
    )  # fmt: skip
    out, errors = watched.communicate(timeout=240)
    assert bare.returncode == 0, bare.stderr.decode()
    assert watched.returncode == 0, errors.decode()
    assert out.decode() == bare.stdout.decode()
    assert artifact(folder, "ops", watched).stat().st_size
