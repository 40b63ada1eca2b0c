"""Training whose first step is slow: the ranks trace and compile a function."""

import time

import torch

from _train.training import Job, start


def activation(values: torch.Tensor) -> torch.Tensor:
    return torch.relu(values) * torch.sigmoid(values) + values.sin()


def warm_up(job: Job) -> None:
    # Some ranks find the result in a cache, others do the work.
    end = time.monotonic() + (4 + 8 * job.random.random())
    compiled = torch.compile(activation, backend="eager")
    while time.monotonic() < end:
        torch.compiler.reset()
        compiled(torch.randn(8, 8))


def main() -> None:
    job = start(__file__)
    warm_up(job)
    for step, batch in job.batches(steps=100):
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
