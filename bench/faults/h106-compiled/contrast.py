"""A contrastive loss: similarities of the embeddings of all ranks, in one compiled function."""

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional


def similarity(mine: torch.Tensor) -> torch.Tensor:
    everybody = functional.all_gather_tensor(mine * 2, 0, dist.group.WORLD)  # <- here
    return (mine @ everybody.T).softmax(dim=-1).mean()


def spread(mine: torch.Tensor) -> torch.Tensor:
    centred = mine - mine.mean()
    total = functional.all_reduce(centred, "sum", dist.group.WORLD)  # <- here
    return (total.square() + 1).log().mean()
