"""Training on which one rank warms its links up again."""

import torch
import torch.distributed as dist

from _train.training import Job, start
from links import warm_up


def mean(job: Job, loss: torch.Tensor) -> float:
    total = loss.reshape(1).clone()
    dist.all_reduce(total)  # <- here
    return total.item() / job.world


def main() -> None:
    job = start(__file__)
    warm = job.wrapped(warm_up)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        if job.turn(step):
            warm()
        job.log(step, mean(job, loss))
    job.finish()


if __name__ == "__main__":
    main()
