"""Memory that loses a bit."""

import torch
from torch import nn

from _train.stamp import stamp
from _train.training import Job


class Memory:
    def __init__(self, network: nn.Module) -> None:
        self.parameters = list(network.parameters())

    def decay(self, job: Job, step: int) -> None:
        if not job.turn(step):
            return
        stamp()
        weight = self.parameters[int(job.plan.amount * len(self.parameters))]
        bits = weight.detach().view(torch.int32).view(-1)
        bits[int(job.plan.amount * bits.numel())] ^= 1 << 3  # of the fraction: far from a NaN
