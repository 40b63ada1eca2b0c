"""A job that ends well, though something beside its ranks has printed a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.launch.running import END, run_whystuck, torchrun

pytest.importorskip("torch")

JOB = """
import subprocess, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    subprocess.run([sys.executable, "-c", "import os; os.kill(2**22 - 1, 15)"])
dist.barrier()
"""
JOB += END


def test_traceback_of_a_helper_is_no_crash_of_a_job_that_ended_with_0(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(JOB)
    done = run_whystuck(
        "run", "--evidence", "ev", "--", *torchrun(2, tmp_path / "train.py"), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"ProcessLookupError" in done.stderr
    assert not list((tmp_path / "ev").glob("incidents/*"))

    again = run_whystuck("diagnose", "ev", "--format", "json", cwd=tmp_path)
    report = json.loads(again.stdout)
    assert report["verdict"] not in {"crashed", "stuck"}
    assert report["findings"] == []
