"""Jobs whose user has turned torch's flight recorder off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.launch.running import run_whystuck, torchrun

HANGS = """\
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(4)
for _ in range(5):
    dist.all_reduce(value)
if dist.get_rank() == 1:
    time.sleep({seconds})
dist.all_reduce(value)
dist.destroy_process_group()
"""
OFF = {"TORCH_FR_BUFFER_SIZE": "0"}


def test_rank_that_hangs_is_told_from_the_op_logs(tmp_path: Path) -> None:
    job = tmp_path / "train.py"
    job.write_text(HANGS.format(seconds=600))

    done = run_whystuck(
        "run", "--stall-after", "4", "--on-stall", "kill", "--evidence", "ev", "--",
        *torchrun(2, job), cwd=tmp_path, environment=OFF,
    )  # fmt: skip

    assert done.returncode == 124, done.stderr.decode()
    report = json.loads((tmp_path / "ev/incidents/000/report.json").read_text())
    found = [one for one in report["findings"] if one["severity"] == "error"]
    assert [(one["code"], one["culprits"]["ranks"]) for one in found] == [("H101", [1])]
    assert any(one["rank"] == 1 and one["line"] == 8 for one in found[0]["where"])


@pytest.mark.slow
def test_nothing_is_told_while_no_op_is_counted(tmp_path: Path) -> None:
    """Neither torch nor the op log counts: a rank that waits may as well be one that works."""
    job = tmp_path / "train.py"
    job.write_text(HANGS.format(seconds=10))

    done = run_whystuck(
        "run", "--stall-after", "4", "--on-stall", "kill", "--comm", "off",
        "--evidence", "ev", "--",
        *torchrun(2, job), cwd=tmp_path, environment=OFF,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr.decode()
    assert not (tmp_path / "ev/incidents").exists()
