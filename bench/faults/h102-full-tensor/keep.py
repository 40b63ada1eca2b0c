"""Keeps the best weights on rank 0."""

import torch

from _train.stamp import stamp
from _train.training import Job


class Best:
    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}

    def keep(self, job: Job, step: int) -> None:
        if job.rank != 0 or step < job.plan.step:
            return
        stamp()
        for name, parameter in job.engine.network.named_parameters():
            self.weights[name] = gather(parameter)  # <- also


def gather(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.full_tensor().clone()  # type: ignore[operator, no-any-return]  # <- here
