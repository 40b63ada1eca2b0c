"""A compiled norm, and a cache of the compiler that does not answer on one rank."""

import time
from typing import Any

import torch

from _train.stamp import stamp
from _train.training import Job


def prepare(job: Job) -> None:
    """Put a lookup that never returns into the compiler of the chosen rank."""
    if job.chosen():
        from torch._inductor.graph import GraphLowering

        GraphLowering.run = look_up  # type: ignore[method-assign]


def look_up(*_: Any, **__: Any) -> Any:
    stamp()
    time.sleep(3600)  # <- here


@torch.compile(dynamic=False)
def norm(values: torch.Tensor) -> torch.Tensor:
    return (values * values).sum().sqrt()


def measure_norm(job: Job, step: int) -> None:
    if job.turn(step):
        norm(torch.ones(16))  # <- here
