"""Training; one process is stopped by a signal."""

import os
import signal

from _train.stamp import stamp
from _train.training import Job, start


def on_step(job: Job, step: int) -> None:
    if job.turn(step):
        stamp()
        os.kill(os.getpid(), signal.SIGSTOP)  # <- here


def main() -> None:
    job = start(__file__)
    hook = job.wrapped(on_step)
    for step, batch in job.batches():
        hook(job, step)
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
