"""Training on images that worker processes decode."""

from _train.training import start
from images import Images


def main() -> None:
    job = start(__file__)
    for step, batch in job.batches(Images(job), workers=1 + job.plan.seed % 2):
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
