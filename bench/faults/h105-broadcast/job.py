"""Training that shares its loss scale in one of two ways."""

import torch
import torch.distributed as dist

from _train.stamp import stamp
from _train.training import Job, start


def share_scale(job: Job, step: int) -> float:
    scale = torch.ones(1)
    if job.turn(step):
        stamp()
        dist.broadcast(scale, src=(job.rank + 1) % job.world)  # <- here
    else:
        dist.all_reduce(scale, op=dist.ReduceOp.MAX)
    return scale.item()


def main() -> None:
    job = start(__file__)
    share = job.wrapped(share_scale)
    for step, batch in job.batches():
        loss = job.engine.step(batch) * share(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
