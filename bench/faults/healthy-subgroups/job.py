"""Training with groups of different sizes: pairs, a group of three and single ranks."""

import torch
import torch.distributed as dist

from _train.training import Job, start

Groups = list[tuple[int, dist.ProcessGroup]]


def build_groups(job: Job) -> Groups:
    members = ((0, 1), (2, 3), (1, 2, 3), (0,))
    made = [(every, ranks, dist.new_group(list(ranks))) for every, ranks in enumerate(members, 1)]
    return [(every, group) for every, ranks, group in made if job.rank in ranks]


def share(groups: Groups, step: int, value: torch.Tensor) -> None:
    for every, group in groups:
        if step % every == 0:
            dist.all_reduce(value.clone().reshape(1), group=group)


def main() -> None:
    job = start(__file__)
    groups = build_groups(job)
    for step, batch in job.batches(steps=120):
        loss = job.engine.step(batch)
        share(groups, step, loss)
        if step % 4 == 0:
            job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
