"""Training whose process group gives up after six seconds."""

import time
from datetime import timedelta

from _train.stamp import stamp
from _train.training import Job, start


def wait_for_quota(job: Job, step: int) -> None:
    if job.turn(step):
        stamp()
        time.sleep(3600)  # <- here


def main() -> None:
    job = start(__file__, timeout=timedelta(seconds=6))
    before_step = job.wrapped(wait_for_quota)
    for step, batch in job.batches():
        before_step(job, step)
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
