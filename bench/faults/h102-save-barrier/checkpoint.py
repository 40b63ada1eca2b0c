"""Saving on rank 0."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from _train.stamp import stamp
from _train.training import Job


def save_checkpoint(job: Job, step: int) -> None:
    state = job.engine.full_state()
    if job.rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            torch.save(state, Path(folder) / f"step-{step}.pt")
        stamp()
        dist.barrier()  # <- here
