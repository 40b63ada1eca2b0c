"""Ranks in a grid: neighbours share the layers of a model, and the rows of the grid its data."""

from dataclasses import dataclass

import torch.distributed as dist

WIDTH = 2


@dataclass(frozen=True)
class Grid:
    tensor: dist.ProcessGroup
    data: dist.ProcessGroup


def build_grid(rank: int, world: int) -> Grid:
    """Make all groups on all ranks, as torch asks for, and return those of this rank."""
    rows = [list(range(first, first + WIDTH)) for first in range(0, world, WIDTH)]
    columns = [list(range(first, world, WIDTH)) for first in range(WIDTH)]
    tensor = [dist.new_group(ranks) for ranks in rows]
    data = [dist.new_group(ranks) for ranks in columns]
    return Grid(tensor[rank // WIDTH], data[rank % WIDTH])
