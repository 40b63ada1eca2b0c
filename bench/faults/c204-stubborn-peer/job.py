"""Training that uploads its state when it is told to end, however long that takes."""

import signal
import time

from _train.training import Job, start
from vocabulary import look_up


def upload_slowly(*_: object) -> None:
    time.sleep(600)


def main() -> None:
    job = start(__file__)
    if job.rank == (job.plan.culprit + 1) % job.world:
        signal.signal(signal.SIGTERM, upload_slowly)
    find = job.wrapped(look_up)
    for step, batch in job.batches():
        find(job, step)
        loss = train(job, batch)
        job.log(step, loss)
    job.finish()


def train(job: Job, batch) -> float:  # type: ignore[no-untyped-def]
    try:
        return job.mean(job.engine.step(batch))
    except RuntimeError:
        if job.rank != (job.plan.culprit + 1) % job.world:
            raise
        # Somebody is gone; this rank waits for the launcher to tell it what to do.
        time.sleep(600)
        raise


if __name__ == "__main__":
    main()
