"""A pipeline: micro-batches go forward through the stages, and gradients come back."""

import torch
import torch.distributed as dist
from torch import nn

from _train.data import BATCH, WIDTH
from _train.stamp import stamp
from _train.training import Job

MICROBATCHES = 4


class Stage:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.block = nn.Linear(WIDTH, WIDTH)
        self.is_first, self.is_last = job.rank == 0, job.rank == job.world - 1

    def run(self, step: int) -> None:
        numbers = range(MICROBATCHES)
        outputs = [self.forward(number, self.is_left_out(step, number)) for number in numbers]
        for number, values in enumerate(outputs):
            self.backward(values, self.is_left_out(step, number))

    def is_left_out(self, step: int, number: int) -> bool:
        # An empty micro-batch.
        if self.job.turn(step) and number == self.job.plan.depth:
            stamp()
            return True
        return False

    def forward(self, number: int, is_empty: bool) -> torch.Tensor:
        values = torch.ones(BATCH, WIDTH)
        if not self.is_first:
            dist.recv(values, src=self.job.rank - 1)
        values = self.block(values)
        if not self.is_last and not is_empty:
            dist.send(values.detach(), dst=self.job.rank + 1)  # <- here
        return values

    def backward(self, values: torch.Tensor, is_empty: bool) -> None:
        gradient = torch.ones_like(values)
        if not self.is_last:
            dist.recv(gradient, src=self.job.rank + 1)  # <- also
        if not self.is_first and not (self.is_last and is_empty):
            dist.send(gradient, dst=self.job.rank - 1)  # <- here
