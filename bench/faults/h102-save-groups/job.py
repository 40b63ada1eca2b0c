"""Training with data and tensor groups that saves a checkpoint now and then."""

import torch
import torch.distributed as dist

from _train.grid import Grid, build_grid
from _train.stamp import stamp
from _train.training import Job, start
from saving import save_checkpoint


def average(grid: Grid, loss: torch.Tensor) -> float:
    value = loss.reshape(1).clone()
    dist.all_reduce(value, group=grid.tensor)
    dist.all_reduce(value, group=grid.data)
    return value.item()


def maybe_save(job: Job, grid: Grid, step: int) -> None:
    if job.plan.even:
        if job.rank == 0 and step == job.plan.step:
            stamp()
            save_checkpoint(job.engine.network, grid, step)  # <- here
    elif is_time(job, step):
        stamp()
        save_checkpoint(job.engine.network, grid, step)  # <- here


def is_time(job: Job, step: int) -> bool:
    return step == job.plan.step and not job.rank


def main() -> None:
    job = start(__file__)
    grid = build_grid(job.rank, job.world)
    save = job.wrapped(maybe_save)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        job.log(step, average(grid, loss))
        save(job, grid, step)
    job.finish()


if __name__ == "__main__":
    main()
