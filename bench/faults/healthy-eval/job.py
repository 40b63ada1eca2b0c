"""Training whose rank 0 evaluates alone after each epoch while the others wait."""

import time

import torch
import torch.distributed as dist
from torch import nn

from _train.data import WIDTH
from _train.training import start


@torch.no_grad()
def evaluate(network: nn.Module, seconds: float) -> float:
    network.eval()
    end = time.monotonic() + seconds
    total, count = 0.0, 0
    while time.monotonic() < end:
        total += network(torch.randn(4096, WIDTH)).square().mean().item()
        count += 1
    network.train()
    return total / count


def main() -> None:
    # A forward pass on one rank alone would be a fault under FSDP.
    job = start(__file__, shapes=("plain", "ddp"))
    for _ in range(2):
        for step, batch in job.batches(steps=40):
            loss = job.engine.step(batch)
            job.log(step, job.mean(loss))
        if job.rank == 0:
            score = evaluate(job.engine.network, seconds=19 + 6 * job.plan.amount)
            print(f"score {score:.4f}", flush=True)
        dist.barrier()
    job.finish()


if __name__ == "__main__":
    main()
