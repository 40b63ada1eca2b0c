"""A job of one rank on the backend that is like NCCL, with the probe in it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.backends import Backend, using
from tests.nccl_like.building import Like
from tests.probe.job import artifact, job_dir, start_rank
from tests.probe.oplog.op_log_file import OpLogFile, read_op_log

HEAD = """
import ctypes, json, os, sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
import nccl_like as like
pg, device = dist.group.WORLD, torch.device("privateuseone", 0)
def tell(**figures):
    print(json.dumps(figures), flush=True)
def count_tensors():
    # The device itself holds those of ops that it has not come to yet.
    end_s = time.monotonic() + 60
    while like.tensors() and time.monotonic() < end_s:
        time.sleep(0.01)
    return like.tensors()
def meet(name):
    print(name, flush=True)
    while not os.path.exists(name):
        time.sleep(0.01)
"""
# As torch's class of CUDA graphs, where torch has none.
GRAPH = """
base = torch.cuda.CUDAGraph.__mro__[1]
for name in ("capture_begin", "capture_end", "replay", "reset"):
    setattr(base, name, lambda self, *args, **kwargs: None)
graph = object.__new__(torch.cuda.CUDAGraph)
graph._tracker = None
"""
END = "\ndist.destroy_process_group()\n"


@contextmanager
def running(
    tmp_path: Path, folder: Path, like: Like, body: str, **switch: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job whose script goes on with ``body``."""
    state = {"generation": 1, "comm": "on", **switch}
    (folder / "switch.json").write_text(json.dumps(state))
    extra = {
        "CUDART": str(like.cudart),
        "CUDA": str(like.cuda),
        "CUDA_LIKE_LOG": str(tmp_path / "calls"),
        "CUDA_LIKE_ACTIVE": str(tmp_path / "active"),
        "PYTHONWARNINGS": "ignore",
    }
    with using(Backend(like)):
        process = start_rank(tmp_path, folder, script=HEAD + body + END, extra=extra)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(tmp_path: Path, like: Like, body: str, **switch: str) -> tuple[dict[str, Any], OpLogFile]:
    """Run a job to its end; return the figures that it told last, and its op log."""
    with job_dir() as folder, running(tmp_path, folder, like, body, **switch) as process:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
        log = read_op_log(artifact(folder, "ops", process))
    return json.loads(out.splitlines()[-1]), log


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.02)
