"""Values are shared within rows and columns of a grid, in the order in which they come."""

import torch
import torch.distributed as dist

from _train.grid import build_grid
from _train.stamp import stamp
from _train.training import start


def share(value: torch.Tensor, groups: list[dist.ProcessGroup]) -> None:
    for group in groups:
        dist.all_reduce(value, group=group)  # <- here


def main() -> None:
    job = start(__file__)
    grid = build_grid(job.rank, job.world)
    # The diagonal begins with its rows, the others with their columns.
    is_row_first = job.rank in (0, job.world - 1)
    groups = [grid.tensor, grid.data] if is_row_first else [grid.data, grid.tensor]
    run = job.wrapped(share)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        if step == 0:
            stamp()
        run(loss.reshape(1).clone(), groups)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
