"""Training with a rate limiter before each step."""

import time

from _train.stamp import stamp
from _train.training import Job, start
from throttle import Bucket


def cool_down(job: Job, step: int) -> None:
    if job.turn(step):
        stamp()
        time.sleep(3600)  # <- here


def main() -> None:
    job = start(__file__)
    bucket = Bucket(job)
    before_step = job.wrapped(cool_down if job.plan.even else bucket.take)
    for step, batch in job.batches():
        before_step(job, step)
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
