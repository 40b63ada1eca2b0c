"""`--gpu-coredump`: a job that hangs, whose ranks answer as CUDA's driver does."""

from __future__ import annotations

import json
from pathlib import Path

from tests.backends import on_both_slowly
from tests.collect.node.test_coredump import KERNELS
from tests.launch.running import clean_environment, run_whystuck, torchrun

ROOT = Path(__file__).parents[2]
SCRIPT = f"""
import os, sys, threading, time
import torch.distributed as dist
sys.path.insert(0, {str(ROOT)!r})
from tests.collect.node.gpu_rank import serve

print("flags", os.environ["CUDA_COREDUMP_GENERATION_FLAGS"])
dist.init_process_group("gloo")
threading.Thread(target=serve, args=("dumps", 64), daemon=True).start()
for step in range(20):
    if step == 10 and dist.get_rank() == 1:
        time.sleep(600)
    dist.barrier()
"""


@on_both_slowly
def test_stall_has_a_dump_of_the_rank_that_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/kernels").write_text(KERNELS)
    program = tmp_path / "bin/cuda-gdb"
    program.write_text(f'#!/bin/sh\ncat "{tmp_path}/bin/kernels"\n')
    program.chmod(0o755)
    environment = clean_environment(CUDA_COREDUMP_GENERATION_FLAGS="skip_abort")
    environment["PATH"] = f"{tmp_path}/bin:{environment['PATH']}"
    options = ("--stall-after", "6", "--on-stall", "kill", "--evidence", "ev", "--gpu-coredump")
    done = run_whystuck(
        "run", *options, "--", *torchrun(2, script), cwd=tmp_path, environment=environment
    )

    assert done.returncode == 124, done.stderr.decode()
    assert b"flags skip_abort" in done.stdout
    incident = tmp_path / "ev/incidents/000"
    (core,) = incident.glob("*/rank-*/gpu.cudacore")
    assert (core.parent.name, core.stat().st_size) == ("rank-1", 64 << 10)
    assert (core.parent / "gpu-kernels.txt").read_text() == KERNELS
    report = json.loads((incident / "report.json").read_text())
    assert report["findings"][0]["culprits"]["ranks"] == [1]
    assert not [gap for gap in report["gaps"] if "dump of a device" in gap["what"]]
