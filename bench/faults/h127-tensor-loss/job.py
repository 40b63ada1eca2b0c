"""Training with tensor and data parallelism: layers are split over pairs of ranks."""

import torch
import torch.distributed as dist

from _train.grid import Grid, build_grid
from _train.stamp import stamp
from _train.training import Job, start


def forward(grid: Grid, features: torch.Tensor) -> torch.Tensor:
    hidden = features.mean(dim=1)
    for _ in range(2):
        dist.all_reduce(hidden, group=grid.tensor)
        hidden = hidden / 2
    return hidden


def auxiliary_loss(job: Job, grid: Grid, step: int, hidden: torch.Tensor) -> torch.Tensor:
    """Balances the halves of a layer; the share of some batches is empty."""
    share = hidden[:0] if job.turn(step) else hidden[:4]
    if share.numel() == 0:
        stamp()
        return torch.zeros(())  # <- also
    total = share.square().sum().reshape(1)
    dist.all_reduce(total, group=grid.tensor)  # <- here
    return total


def average(grid: Grid, gradients: list[torch.Tensor]) -> None:
    for gradient in gradients:
        dist.all_reduce(gradient, group=grid.data)


def main() -> None:
    job = start(__file__, shapes=("plain", "ddp"))
    grid = build_grid(job.rank, job.world)
    balance = job.wrapped(auxiliary_loss)
    for step, (features, _) in job.batches():
        hidden = forward(grid, features)
        loss = hidden.mean() + balance(job, grid, step, hidden).sum()
        average(grid, [torch.ones(16), torch.ones(8 if job.plan.even else 16)])
        job.log(step, loss.item())
        if job.plan.shape == "ddp":
            job.mean(loss)
    job.finish()


if __name__ == "__main__":
    main()
