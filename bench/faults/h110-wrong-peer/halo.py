"""Hands the edge of each rank's part of a field to the next rank."""

import torch
import torch.distributed as dist

from _train.stamp import stamp
from _train.training import Job

SMALL, LARGE = 64, 2 << 20


def exchange(job: Job, step: int) -> torch.Tensor:
    right, left = (job.rank + 1) % job.world, (job.rank - 1) % job.world
    if job.turn(step):
        stamp()
        right = (right + 1) % job.world
    edge = torch.full((LARGE if job.plan.depth == 1 else SMALL,), float(step))
    halo = torch.empty_like(edge)
    request = dist.isend(edge, dst=right)  # <- here
    assert request is not None
    dist.recv(halo, src=left)
    request.wait()  # <- also
    return halo
