"""A transform that is compiled for each length on its own."""

import itertools

import torch

from _train.stamp import stamp
from _train.training import Job


def mix(values: torch.Tensor) -> torch.Tensor:
    for turn in range(200):
        values = torch.sin(values + turn) * torch.cos(values)
    return values


def transform_longest(job: Job, step: int) -> None:
    if not job.turn(step):
        return
    stamp()
    for length in itertools.count(8):
        torch.compiler.reset()
        compiled = torch.compile(mix, backend="eager", dynamic=False)
        compiled(torch.randn(length))  # <- here
