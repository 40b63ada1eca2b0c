"""Training on samples of which some lie in shards on a file system of their own."""

from _train.training import STEPS, start
from shards import Shards, mounted


def main() -> None:
    job = start(__file__)
    with mounted(job) as folder:
        dataset = Shards(job, folder, steps=STEPS)
        for step, batch in job.batches(dataset, workers=0 if job.plan.even else 1):
            loss = job.engine.step(batch)
            job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
