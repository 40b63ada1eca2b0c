"""Statistics of features, brought together with functional collectives."""

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from _train.stamp import stamp
from _train.training import Job


def gather(features: torch.Tensor, world: int) -> torch.Tensor:
    group = dist.group.WORLD
    return functional.all_gather_tensor(features, gather_dim=0, group=group)  # <- here


def share_out(features: torch.Tensor, world: int) -> torch.Tensor:
    group = dist.group.WORLD
    parts = features.repeat(world)
    return functional.reduce_scatter_tensor(parts, "sum", scatter_dim=0, group=group)  # <- here


def add_up(features: torch.Tensor, world: int) -> torch.Tensor:
    group = dist.group.WORLD
    both = [features, features.square()]
    return functional.all_reduce_coalesced(both, "sum", group)[0]  # <- here


WAYS = (gather, share_out, add_up)


def collect(job: Job, step: int) -> float:
    size = 48
    if job.turn(step):
        stamp()
        size += 4 * (1 + int(job.plan.amount * 20))
    features = torch.linspace(0.0, 1.0, size)
    way = WAYS[job.plan.seed % len(WAYS)]
    return float(way(features, job.world).sum())  # <- also
