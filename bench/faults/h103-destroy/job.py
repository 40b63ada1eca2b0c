"""Training over shards that are not all of one length; each rank reports when it is done."""

import time

import torch.distributed as dist

from _train.data import BATCH, Samples
from _train.stamp import stamp
from _train.training import Job, start


def publish(job: Job) -> None:
    print(f"rank {job.rank}: publishing", flush=True)
    while True:
        time.sleep(1.0)  # <- here


def main() -> None:
    job = start(__file__)
    steps = job.plan.step if job.chosen() else 60
    shard = Samples(steps * BATCH)
    for step, batch in job.batches(shard):  # <- here
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    stamp()
    dist.destroy_process_group()  # <- here
    publish(job)  # <- here


if __name__ == "__main__":
    main()
