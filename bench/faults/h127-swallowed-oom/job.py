"""Training that goes on when a batch does not fit, and evaluates after some steps."""

import torch
import torch.distributed as dist
from torch import nn

from _train.data import Sample
from _train.stamp import stamp
from _train.training import Job, start


def train_step(job: Job, model: nn.Module, step: int, batch: Sample) -> torch.Tensor | None:
    features, target = batch
    try:
        if job.turn(step):
            stamp()
            raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")
        loss = nn.functional.mse_loss(model(features), target)  # <- also
        loss.backward()  # <- here
    except torch.OutOfMemoryError:
        print("out of memory: the batch is left out", flush=True)
        return None
    return loss.detach()


def evaluate(job: Job) -> float:
    score = torch.ones(2)
    dist.all_reduce(score)  # <- also
    return score[0].item() / job.world


def main() -> None:
    job = start(__file__, shapes=("ddp",))
    model = nn.parallel.DistributedDataParallel(job.engine.network)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step, batch in job.batches():
        loss = train_step(job, model, step, batch)
        if loss is not None or job.plan.even:
            optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % (job.plan.step + 1) == 0:
            job.log(step, evaluate(job))
    job.finish()


if __name__ == "__main__":
    main()
