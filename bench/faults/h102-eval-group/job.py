"""Training that looks for spikes of the loss; the scores have a group of their own."""

import torch
import torch.distributed as dist

from _train.stamp import stamp
from _train.training import Job, start


def check(job: Job, loss: float, group: dist.ProcessGroup) -> None:
    if loss > 3.0:
        stamp()
        scores = [torch.zeros(1) for _ in range(job.world)]
        dist.all_gather(scores, torch.tensor([loss]), group=group)  # <- here


def main() -> None:
    job = start(__file__)
    group = dist.new_group(list(range(job.world)))
    look = job.wrapped(check)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        look(job, 9.0 if job.turn(step) else 1.0, group)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
