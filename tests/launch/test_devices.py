"""A job that hangs while a library that stands in for NVIDIA's driver tells of its devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.agent.metrics.gpu.nvml import nvml_folder
from tests.launch.running import clean_environment, run_whystuck, torchrun

__all__ = ["nvml_folder"]
pytest.importorskip("pynvml")

SCRIPT = """
import ctypes, sys, time
import torch.distributed as dist

ctypes.CDLL(sys.argv[1])  # as the runtime of CUDA does
dist.init_process_group("gloo")
for step in range(20):
    if step == 10 and dist.get_rank() == 1:
        time.sleep(600)
    dist.barrier()
"""


@pytest.mark.slow
def test_stall_has_the_devices_of_its_ranks(nvml_folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    options = ("--stall-after", "6", "--on-stall", "kill", "--evidence", "ev")
    library = str(nvml_folder / "libcuda.so.1")
    done = run_whystuck(
        "run", *options, "--", *torchrun(2, script), library,
        cwd=tmp_path, environment=clean_environment(LD_LIBRARY_PATH=str(nvml_folder)),
    )  # fmt: skip

    assert done.returncode == 124, done.stderr.decode()
    incident = tmp_path / "ev/incidents/000"
    (path,) = incident.glob("*/devices.json")
    devices = json.loads(path.read_text())["devices"]
    assert [(one["ranks"], one["is_guessed"]) for one in devices] == [([0], True), ([1], True)]
    assert [len(one["looks"]) for one in devices] == [2, 2]
    report = json.loads((incident / "report.json").read_text())
    assert "devices" in report["coverage"]["sources"]
    assert not [gap for gap in report["gaps"] if "devices" in gap["what"]]
