"""Training that leaves out the step of a bad batch, and whose learning rate is far too large."""

import torch
import torch.distributed as dist
from torch import nn

from _train.data import Sample
from _train.engines import forward_backward
from _train.training import Job, start


class CarefulTrainer:
    """Drops gradients whose norm is not finite, as recipes for large models do."""

    def __init__(self, job: Job) -> None:
        self.network = getattr(job.engine, "wrapped", job.engine.network)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-4)
        self.warm_up = job.plan.step
        self.skipped = 0

    def step(self, step: int, batch: Sample) -> torch.Tensor:
        loss = forward_backward(self.network, batch)
        self.average_gradients()
        self.optimizer.param_groups[0]["lr"] = 1e-4 if step < self.warm_up else 1e30
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), max_norm=1e3)
        if torch.isfinite(norm):
            self.optimizer.step()
        else:
            self.skipped += 1
        self.optimizer.zero_grad()
        return loss

    def average_gradients(self) -> None:
        if isinstance(self.network, nn.parallel.DistributedDataParallel):
            return
        for parameter in self.network.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def main() -> None:
    job = start(__file__, shapes=("plain", "ddp"))
    trainer = CarefulTrainer(job)
    step_safely = job.wrapped(trainer.step)
    for step, batch in job.batches():
        job.log(step, step_safely(step, batch).item())
    del trainer, step_safely
    job.finish()


if __name__ == "__main__":
    main()
