"""Training with a contrastive term that is compiled."""

import torch

from _train.data import WIDTH
from _train.stamp import stamp
from _train.training import Job, start
from contrast import similarity, spread

ROWS = 6


def embed(job: Job, step: int) -> torch.Tensor:
    rows = ROWS
    if job.turn(step):
        stamp()
        rows -= 1 + int(job.plan.amount * 3)
    return torch.full((rows, WIDTH), 0.01 * step)


def main() -> None:
    job = start(__file__)
    loss_of = torch.compile(similarity if job.plan.even else spread, backend="aot_eager")
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        loss_of(embed(job, step))  # <- here
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
