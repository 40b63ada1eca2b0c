"""Training that accumulates gradients over some batches, with an evaluation now and then."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn

from _train.data import Sample
from _train.engines import LEARNING_RATE
from _train.stamp import stamp
from _train.training import Job, start


class Trainer:
    def __init__(self, job: Job, accumulate: int) -> None:
        self.job = job
        self.accumulate = accumulate
        self.model = nn.parallel.DistributedDataParallel(job.engine.network)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)

    def train(self, step: int, batch: Sample) -> None:
        is_last = (step + 1) % self.accumulate == 0
        with contextlib.nullcontext() if is_last else self.model.no_sync():
            features, target = batch
            loss = nn.functional.mse_loss(self.model(features), target)  # <- also
            loss.backward()  # <- here
        if is_last:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def evaluate(self) -> float:
        score = torch.ones(1)
        dist.all_reduce(score)  # <- also
        return score.item()


def main() -> None:
    job = start(__file__, shapes=("ddp",))
    job.engine.wrapped = None
    every = 8 if job.plan.even else 12
    trainer = Trainer(job, accumulate=4 if job.chosen() else 2)
    for step, batch in job.batches():
        trainer.train(step, batch)
        if (step + 1) % every == 0:
            stamp()
            job.log(step, trainer.evaluate())
    job.finish()


if __name__ == "__main__":
    main()
