"""gloo writes nothing when a collective times out: the dumps come from the probe.

On gloo alone: of ops on devices, the watchdog of NCCL tells that they took too long.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.launch.running import run_whystuck, torchrun

JOB = """
import os, sys, time, datetime
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))
rank, how = dist.get_rank(), sys.argv[1]
for _ in range(3):
    dist.all_reduce(torch.ones(2))
def step():
    if rank == 1:
        time.sleep(60)
    dist.all_reduce(torch.ones(3))
try:
    step()
except RuntimeError as error:
    assert "Timed out waiting" in str(error), error
    if how == "raises":
        raise
    if how == "sys.exit":
        sys.exit(1)
    os._exit(1)
"""


@pytest.mark.parametrize(
    "how",
    [
        "raises",
        pytest.param("sys.exit", marks=pytest.mark.slow),
        pytest.param("os._exit", marks=pytest.mark.slow),
    ],
)
def test_run_when_gloo_times_out_then_each_rank_has_its_dump(tmp_path: Path, how: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(JOB)
    done = run_whystuck("run", "--evidence", "ev", "--", *torchrun(2, script, how), cwd=tmp_path)
    assert done.returncode == 1
    (incident,) = (tmp_path / "ev/incidents").iterdir()
    for rank in (0, 1):
        (dump,) = incident.glob(f"*/rank-{rank}/fr.pickle")
        assert b"all_reduce" in dump.read_bytes()
    (record,) = incident.glob("*/rank-0/exception.json")
    assert "Timed out waiting" in json.loads(record.read_text())["message"]
    first = json.loads((incident / "report.json").read_text())["findings"][0]
    assert first["culprits"]["ranks"] == [1]
