"""Training that evaluates every few steps; the scores have a group of their own."""

import torch
import torch.distributed as dist

from _train.stamp import stamp
from _train.training import Job, start


def evaluate(job: Job, step: int, group: dist.ProcessGroup) -> list[float]:
    scores = []
    for part in range(2 + job.plan.even):
        values = [] if job.turn(step) and part == 1 else [0.5]
        if not values:
            stamp()
            continue  # <- also
        total = torch.tensor([sum(values), float(len(values))])
        dist.all_reduce(total, group=group)  # <- here
        scores.append(total[0].item())
    return scores


def main() -> None:
    job = start(__file__)
    group = dist.new_group(list(range(job.world)))
    run = job.wrapped(evaluate)
    every = 1 + job.plan.step % 3
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        if step % every == job.plan.step % every:
            run(job, step, group)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
