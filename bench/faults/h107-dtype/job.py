"""Training that averages a running norm over ranks."""

import torch
import torch.distributed as dist

from _train.stamp import stamp
from _train.training import Job, start


def average_norm(job: Job, step: int, loss: torch.Tensor) -> float:
    norms = loss.sqrt().repeat(16)
    if job.turn(step):
        stamp()
        norms = norms.double()
    dist.all_reduce(norms)  # <- here
    return norms.mean().item()


def main() -> None:
    job = start(__file__)
    average = job.wrapped(average_norm)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        average(job, step, loss)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
