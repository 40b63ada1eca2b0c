"""Rank 0 alone evaluates now and then; the evaluation grows, the time limit does not."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from _train.training import Job, start

LIMIT_S = 8.0


def evaluate(job: Job, seconds: float) -> float:
    job.engine.network.eval()
    end = time.monotonic() + seconds
    total = 0.0
    while time.monotonic() < end:
        total += float(torch.randn(64, 64).square().mean())  # <- here
    job.engine.network.train()
    return total


def main() -> None:
    job = start(__file__, timeout=timedelta(seconds=LIMIT_S))
    every = 5 + job.plan.step % 3
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
        if step % every == every - 1:
            is_last = step >= 3 * every - 1
            if job.rank == 0:
                evaluate(job, 3 * LIMIT_S if is_last else (0.55 + 0.2 * job.plan.amount) * LIMIT_S)
            dist.barrier()  # <- also
    job.finish()


if __name__ == "__main__":
    main()
