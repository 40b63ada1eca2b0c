"""A cache of decoded samples that nobody empties."""

import torch

from _train.data import Sample
from _train.stamp import stamp
from _train.training import Job

MIB = 1 << 20


class Cache:
    """Half of the seeds hold tensors, the others bytes."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.kept: list[object] = []

    def keep(self, step: int, batch: Sample) -> None:
        if not self.job.chosen() or step < self.job.plan.step:
            return
        if step == self.job.plan.step:
            stamp()
        size = (80 + int(60 * self.job.plan.amount)) * MIB
        if self.job.plan.even:
            self.kept.append(torch.ones(size // 4))  # <- here
        else:
            self.kept.append(bytes(batch[0].numpy()) * (size // batch[0].nbytes))  # <- also
