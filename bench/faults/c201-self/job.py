"""Training; one process ends itself with SIGKILL, as a memory guard would."""

import os
import signal

from _train.stamp import stamp
from _train.training import Job, start


def guard_memory(job: Job, step: int) -> None:
    if job.turn(step):
        stamp()
        os.kill(os.getpid(), signal.SIGKILL)  # <- here


def main() -> None:
    job = start(__file__)
    hook = job.wrapped(guard_memory)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        hook(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
