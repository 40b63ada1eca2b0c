"""Loss and metrics are reduced on groups of their own; one rank does so in the other order."""

import torch
import torch.distributed as dist

from _train.stamp import stamp
from _train.training import Job, start


def main() -> None:
    job = start(__file__)
    everybody = list(range(job.world))
    losses, metrics = dist.new_group(everybody), dist.new_group(everybody)
    report = job.wrapped(reduce_both)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        report(job, step, loss, losses, metrics)
    job.finish()


def reduce_both(
    job: Job, step: int, loss: torch.Tensor, losses: dist.ProcessGroup, metrics: dist.ProcessGroup
) -> None:
    value, count = loss.reshape(1).clone(), torch.ones(3)
    if job.turn(step):
        stamp()
        dist.all_reduce(count, group=metrics)  # <- here
        dist.all_reduce(value, group=losses)
    else:
        dist.all_reduce(value, group=losses)  # <- here
        dist.all_reduce(count, group=metrics)


if __name__ == "__main__":
    main()
