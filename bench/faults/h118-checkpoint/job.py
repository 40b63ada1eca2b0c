"""Training that saves once to a slow disk; the others wait until the file is there."""

import torch.distributed as dist

from _train.training import start
from checkpoint import save_checkpoint


def main() -> None:
    job = start(__file__)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
        if step == job.plan.step:
            state = job.engine.full_state()
            if job.rank == 0:
                save_checkpoint(state, seconds=40 + 10 * job.plan.amount)  # <- also
            dist.barrier()
    job.finish()


if __name__ == "__main__":
    main()
