"""Training with several groups: warm-up, uneven shares, and an evaluation now and then."""

import time

import torch
import torch.distributed as dist

from _train.grid import Grid, build_grid
from _train.training import Job, start


def exchange(job: Job, grid: Grid, step: int) -> None:
    """Send as many tokens to each neighbour as the router says."""
    counts = [1 + (step + peer) % 3 for peer in range(2)]
    mine = dist.get_rank(grid.tensor)
    out = torch.ones(sum(counts), 4)
    back = torch.empty(2 * (1 + (step + mine) % 3), 4)
    dist.all_to_all_single(back, out, [len(back) // 2] * 2, counts, group=grid.tensor)


def evaluate(job: Job, group: dist.ProcessGroup, parts: int) -> None:
    for _ in range(parts):
        time.sleep(job.random.uniform(0, 0.05))
        dist.all_reduce(torch.ones(3), group=group)


def main() -> None:
    job = start(__file__)
    grid = build_grid(job.rank, job.world)
    scores = dist.new_group(list(range(job.world)))
    for _ in range(3):
        dist.all_reduce(torch.ones(1), group=grid.data)
    for step, batch in job.batches(steps=100):
        if job.plan.even:
            exchange(job, grid, step)
        loss = job.engine.step(batch)
        dist.all_reduce(loss.reshape(1).clone(), group=grid.data)
        if job.rank // 2 == step % 2:
            dist.all_reduce(torch.ones(2), group=grid.tensor)
        if step % 30 == 7:
            # Pauses of one rank, that the others wait for in different groups.
            time.sleep(3.0 if job.chosen() else 0.0)
            evaluate(job, scores, parts=1 + step // 30)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
