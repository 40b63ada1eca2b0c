"""A job that hangs after one of its ranks has ended: what that one left is part of the scene."""

from __future__ import annotations

import json
from pathlib import Path

from tests.launch.running import LEAVE, run_whystuck, torchrun

# Rank 0 hangs until there is a report. On devices, nobody loses a connection by the end of a rank.
SCRIPT = """
import glob, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(5):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    sys.exit(0)
while not glob.glob("ev/incidents/*/report.json"):
    time.sleep(0.1)
"""


def test_stall_has_the_end_of_a_rank_that_left_before(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT + LEAVE)
    done = run_whystuck(
        "run", "--stall-after", "5", "--evidence", "ev", "--", *torchrun(2, script), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr.decode()
    (folder,) = tmp_path.glob("ev/incidents/000/*/rank-1")
    assert json.loads((folder / "exit.json").read_text())["code"] == 0
    leaving = json.loads((folder / "leaving.json").read_text())
    assert (leaving["call"], leaving["frames"][0]["line"]) == ("sys.exit", 8)
    assert (folder / "fr.pickle").exists()
