"""Passes keys around the ring of ranks, as ring attention does."""

import torch
import torch.distributed as dist

from _train.stamp import stamp
from _train.training import Job


def rotate(job: Job, step: int) -> torch.Tensor:
    right, left = (job.rank + 1) % job.world, (job.rank - 1) % job.world
    if job.turn(step):
        stamp()
        # The tables of neighbours were swapped, or one entry of them is off.
        right, left = (left, left) if job.plan.even else (right, (left - 1) % job.world)
    keys = torch.full((128,), float(step))
    theirs = torch.empty_like(keys)
    ops = [
        dist.P2POp(dist.isend, keys, right),
        dist.P2POp(dist.irecv, theirs, left),
    ]
    for request in dist.batch_isend_irecv(ops):  # <- here
        request.wait()  # <- also
    return theirs
