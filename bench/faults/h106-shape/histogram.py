"""Counts of losses, summed over ranks."""

import torch
import torch.distributed as dist

from _train.stamp import stamp
from _train.training import Job


class Histogram:
    def __init__(self, bins: int) -> None:
        self.bins = bins

    def add(self, job: Job, step: int, loss: torch.Tensor) -> torch.Tensor:
        bins = self.bins
        if job.turn(step):
            stamp()
            bins += 1 + int(job.plan.amount * 100)
        counts = torch.histc(loss.reshape(1), bins=bins, min=0, max=1000)
        dist.all_reduce(counts)  # <- here
        return counts
