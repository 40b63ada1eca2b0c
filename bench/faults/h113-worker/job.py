"""Training on records that loader workers read."""

from _train.training import start
from records import Records, stop_workers


def main() -> None:
    job = start(__file__)
    records = Records(job)
    for step, batch in job.batches(records, workers=1 + job.plan.depth):  # <- also
        stop_workers(job, step)
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
