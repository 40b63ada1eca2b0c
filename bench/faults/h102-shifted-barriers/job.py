"""Training, then an export in several parts with a barrier after each."""

import torch

from _train.training import start
from export import export_parts, save_vocabulary


def main() -> None:
    job = start(__file__)
    for step, batch in job.batches(steps=job.plan.step + 5):
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    save_vocabulary(job)
    written = export_parts(job, parts=4 + round(8 * job.plan.amount))
    job.log(0, job.mean(torch.tensor(float(written))))
    job.finish()


if __name__ == "__main__":
    main()
