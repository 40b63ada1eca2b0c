"""Training over shards that are not all of one length; all ranks meet after the loop."""

import torch.distributed as dist

from _train.data import BATCH, Samples
from _train.stamp import stamp
from _train.training import start


def main() -> None:
    job = start(__file__)
    steps = job.plan.step if job.chosen() else 60
    shard = Samples(steps * BATCH)
    for step, batch in job.batches(shard):  # <- here
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    stamp()
    dist.barrier()  # <- here
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
