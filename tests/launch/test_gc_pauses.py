"""Ranks with many objects, which Python's collector looks at for long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.launch.running import END, run_whystuck, torchrun

# Each step takes about 50 ms; a collection of so many objects takes about 100 ms.
JOB = """
import gc, random, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, wanted = dist.get_rank(), sys.argv[1]
gc.disable()
held = [[] for _ in range(1_500_000)] if wanted in ("all", str(rank)) else []
chance = random.Random(rank)
dist.barrier()
end = torch.tensor(time.time() + 30)
dist.broadcast(end, 0)
while True:
    time.sleep(0.04)
    if held and chance.random() < 0.25:
        gc.collect()
    total = torch.tensor(float(time.time() > end))
    dist.all_reduce(total)
    if total:
        break
"""


@pytest.mark.slow
@pytest.mark.parametrize(("who", "named", "pausing"), [("all", [], [0, 1, 2]), ("1", [1], [1])])
def test_collections_that_others_wait_for_are_told(
    tmp_path: Path, who: str, named: list[int], pausing: list[int]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(JOB + END)
    done = run_whystuck(
        "run", "--no-agent", "--evidence", "ev", "--", *torchrun(3, script, who), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads((tmp_path / "ev/incidents/000/report.json").read_text())

    first = report["findings"][0]
    assert (first["code"], first["culprits"]["ranks"]) == ("S307", named), done.stderr.decode()
    assert first["details"]["pausing_ranks"] == pausing
    assert first["measures"]["pause_s"] > 0.02
    assert not {"S301", "S308"} & {one["code"] for one in report["findings"]}
