"""A pipeline of four stages of different depth, with send and recv between neighbours."""

import time

import torch
import torch.distributed as dist
from torch import nn

from _train.data import BATCH, WIDTH
from _train.training import Job, start
from stages import build_stage

MICROBATCHES = 4


def run_batch(job: Job, stage: nn.Module, pace: float) -> None:
    for _ in range(MICROBATCHES):
        values = torch.randn(BATCH, WIDTH)
        if job.rank > 0:
            dist.recv(values, src=job.rank - 1)
        time.sleep(pace)
        values = stage(values).detach()
        if job.rank < job.world - 1:
            dist.send(values, dst=job.rank + 1)


def main() -> None:
    job = start(__file__, shapes=("plain",))
    stage = build_stage(job.rank)
    pace = (0.005, 0.02, 0.04, 0.01)[(job.rank + job.plan.seed) % 4]
    for step in range(100):
        run_batch(job, stage, pace)
        job.log(step, 0.0)
    job.finish()


if __name__ == "__main__":
    main()
