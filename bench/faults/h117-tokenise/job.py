"""Rank 0 tokenises the corpus first; the others wait for it, then all train."""

import torch.distributed as dist

from _train.training import start
from tokens import tokenise_corpus


def main() -> None:
    job = start(__file__)
    if job.rank == 0:
        tokenise_corpus(seconds=45 + 15 * job.plan.amount)  # <- also
    dist.barrier()
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
