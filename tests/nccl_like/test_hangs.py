"""Hangs of real jobs whose hosts wait for their device: rank 1 is named, and where it is.

Of the list in `bench/gpu/acceptance.py` three are not here: a kernel of rank 1 before the op (7),
as the device has no kernels; shapes that differ (8), by which gloo, that moves the data, aborts;
and a rank that never joins (10), which is called stalled after ten minutes only. Built evidence of
all ten is in `tests/diagnose/context/test_device_waits.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.gpu.running import JOBS, tell_jobs
from tests.launch.running import run_whystuck, torchrun
from tests.nccl_like.building import Like

HANG = "time.sleep(10_000)  # HANG"
CASES = {
    "item": (1, "H101", HANG),
    "clip_grad_norm_": (2, "H101", HANG),
    "synchronize": (3, "H101", HANG),
    "backward of DDP": (4, "H101", HANG),
    "a full launch queue": (5, "H101", HANG),
    "irecv of a batch": (6, "H110", HANG),
    "SIGKILL": (9, "C201", "os.kill(os.getpid(), 9)"),
}


@pytest.mark.parametrize(
    "where", [pytest.param(one, marks=[pytest.mark.slow] if one != "item" else []) for one in CASES]
)
def test_hang_then_rank_and_line_are_named(tmp_path: Path, like: Like, where: str) -> None:
    number, code, text = CASES[where]
    lines = Path(JOBS).read_text().splitlines()
    environment = tell_jobs(like)
    if where == "irecv of a batch":
        # The recorder is that of gloo, which has no sends and receives: op logs tell.
        environment["TORCH_FR_BUFFER_SIZE"] = "0"
    done = run_whystuck(
        "run", "--stall-after", "6", "--on-stall", "kill", "--evidence", "ev", "--",
        *torchrun(2, Path(JOBS), "hang", str(number)), cwd=tmp_path, environment=environment,
    )  # fmt: skip
    assert done.returncode == (1 if code == "C201" else 124), done.stderr.decode()
    report = json.loads((tmp_path / "ev/incidents/000/report.json").read_text())
    finding, *others = report["findings"]
    assert finding["code"] == code
    assert not [one for one in others if one["severity"] == "error"]
    assert finding["culprits"]["ranks"] == [1]
    named = {lines[one["line"] - 1] for one in finding["where"] if one["rank"] == 1}
    assert any(text in line for line in named), named
