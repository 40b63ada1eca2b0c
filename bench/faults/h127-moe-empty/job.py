"""Training with a layer of experts: tokens go to their experts and back in each step."""

import torch
import torch.distributed as dist

from _train.grid import build_grid
from _train.training import Job, start
from experts import Experts


def route(job: Job, step: int) -> torch.Tensor:
    """The tokens of this rank for the experts; the router drops those that score low."""
    kept = 0 if job.turn(step) else 8
    return torch.ones(kept, 4)


def main() -> None:
    job = start(__file__)
    neighbours = build_grid(job.rank, job.world).tensor
    experts = Experts(neighbours if job.plan.even else dist.new_group(list(range(job.world))))
    forward = job.wrapped(experts.forward)
    for step, batch in job.batches():
        forward(route(job, step))
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
