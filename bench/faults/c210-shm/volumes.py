"""Scans, some of which are large."""

import torch

from _train.data import BATCH, Sample, Samples
from _train.training import STEPS, Job

MIB = 1 << 20


class Volumes(Samples):
    def __init__(self, job: Job) -> None:
        super().__init__(STEPS * BATCH)
        self.first_large = job.plan.step * BATCH
        self.large = (3 + int(3 * job.plan.amount)) * MIB // 4

    def __getitem__(self, index: int) -> Sample:
        features, target = self.load(index)
        size = self.large if index >= self.first_large else features.numel()
        return features.repeat(size // features.numel()), target
