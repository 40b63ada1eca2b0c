"""Training with a small flight-recorder ring that wraps many times."""

import os

import torch
import torch.distributed as dist

# The ring is sized when the first group is made.
os.environ["TORCH_FR_BUFFER_SIZE"] = "64"

from _train.training import start


def exchange(count: int) -> None:
    value = torch.ones(1)
    for _ in range(count):
        dist.all_reduce(value)
        value /= dist.get_world_size()


def main() -> None:
    job = start(__file__)
    for step, batch in job.batches(steps=100):
        loss = job.engine.step(batch)
        exchange(20)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
