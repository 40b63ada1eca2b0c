"""A job whose ops are all in CUDA graphs: recorded nowhere when they run, and not stuck."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.launch.running import END, run_whystuck
from tests.nccl_like.jobs import GRAPH

pytestmark = [pytest.mark.slow]

HEAD = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
"""
# Longer than five limits, after which a job that nobody understands was ended.
REPLAY = """
end_s = time.monotonic() + 12
while time.monotonic() < end_s:
    graph.replay()
    time.sleep(0.05)
"""


def _run(tmp_path: Path, body: str) -> tuple[int, list[Path], str]:
    script = tmp_path / "train.py"
    script.write_text(HEAD + GRAPH + body + END)
    done = run_whystuck(
        "run", "--stall-after", "2", "--on-stall", "kill", "--evidence", tmp_path / "evidence",
        "--", sys.executable, script, cwd=tmp_path,
        environment={
            "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
        },
    )  # fmt: skip
    incidents = sorted((tmp_path / "evidence").glob("incidents/*"))
    return done.returncode, incidents, (done.stdout + done.stderr).decode()


def test_job_that_replays_is_not_stalled(tmp_path: Path) -> None:
    code, incidents, output = _run(tmp_path, REPLAY)
    assert code == 0, output
    assert incidents == [], output
