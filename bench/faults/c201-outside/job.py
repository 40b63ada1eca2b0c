"""Training beside a cleaner that ends a process it takes for a leftover."""

import os
import subprocess

from _train.stamp import stamp
from _train.training import Job, start


def clean_up(job: Job, step: int) -> None:
    if job.turn(step):
        stamp()
        subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -9 {os.getpid()}"])


def main() -> None:
    job = start(__file__)
    hook = job.wrapped(clean_up)
    for step, batch in job.batches():
        hook(job, step)
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
