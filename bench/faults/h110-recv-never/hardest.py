"""Hands a tensor to the next rank, and takes one from the rank before."""

import torch
import torch.distributed as dist

from _train.stamp import stamp
from _train.training import Job


def hand_on(job: Job, step: int) -> torch.Tensor:
    receiver = (job.plan.culprit + 1) % job.world
    samples = torch.full((64,), float(step))
    if job.chosen():
        if step == job.plan.step:
            stamp()
            return samples  # <- also
        dist.send(samples, dst=receiver)  # <- also
    elif job.rank == receiver:
        if job.plan.even:
            dist.recv(samples, src=job.plan.culprit)
        else:
            request = dist.irecv(samples, src=job.plan.culprit)
            assert request is not None
            request.wait()
    return samples
