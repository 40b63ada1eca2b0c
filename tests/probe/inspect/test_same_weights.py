"""Weights are the same to the bit, whatever is recorded and looked into.

On gloo alone: the job reads the bytes of its weights.
"""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path

import pytest
from tests.launch.running import END, clean_environment, torchrun
from tests.probe.job import PROBE_DIR, job_dir
from tests.probe.oplog.op_log_file import read_op_log

# Five jobs one after the other.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRAIN = """
import hashlib, os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(3)
layers = [torch.nn.Linear(32, 32) for _ in range(4)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(200):
    optimizer.zero_grad()
    batch = torch.randn(16, 32, generator=torch.Generator().manual_seed(step * 2 + dist.get_rank()))
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach())
    time.sleep(0.02)
digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.numpy().tobytes())
os.write(1, f"weights {digest.hexdigest()}\\n".encode())
"""
TRAIN += END


def _train(tmp_path: Path, folder: Path, settings: list[dict[str, str]]) -> tuple[str, int]:
    """Train with one setting after the other; return the weights and how often it was switched."""
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    environment = clean_environment(
        WHYSTUCK_JOB_DIR=str(folder), PYTHONPATH=str(PROBE_DIR / "site"), OMP_NUM_THREADS="1"
    )
    switched, is_over = 0, threading.Event()

    def switch() -> None:
        nonlocal switched
        part = folder / "switch.json.part"
        while True:
            setting = settings[switched % len(settings)]
            part.write_text(json.dumps({"generation": switched + 1, **setting}))
            part.replace(folder / "switch.json")
            switched += 1
            if is_over.wait(1):
                return

    switcher = threading.Thread(target=switch)
    switcher.start()
    try:
        done = subprocess.run(
            torchrun(2, path), cwd=tmp_path, env=environment, capture_output=True, timeout=250,
            check=False,
        )  # fmt: skip
    finally:
        is_over.set()
        switcher.join()
    assert done.returncode == 0, done.stderr.decode()
    found = [line for line in done.stdout.decode().splitlines() if line.startswith("weights ")]
    assert len(found) == 2
    assert found[0] == found[1]
    return found[0], switched


def test_recorder_and_inspector_are_on_off_or_flipping_then_weights_are_the_same(
    tmp_path: Path,
) -> None:
    off = {"comm": "off", "inspect": "off"}
    on = {"comm": "on", "inspect": "off"}
    looking = {"comm": "on", "inspect": "stats"}
    weights, generations = set(), 0
    for settings in ([off], [on], [looking], [on, off], [looking, on, off]):
        with job_dir() as folder:
            found, switched = _train(tmp_path, folder, settings)
            weights.add(found)
            if len(settings) > 1:
                assert switched > len(settings)
                logs = [read_op_log(one) for one in folder.glob("ops-*")]
                assert len(logs) == 2
                generations += max(log.generation for log in logs)
                assert all(log.ops for log in logs)
    assert len(weights) == 1
    # The ranks have followed.
    assert generations >= 4
