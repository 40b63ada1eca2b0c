"""Training that its user ends with Ctrl-C while it moves."""

import os
import signal
import subprocess

from _train.stamp import stamp
from _train.training import Job, start


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def interrupt(job: Job, step: int) -> None:
    if job.turn(step):
        stamp()
        program = parent_of(os.getppid())
        subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -{signal.SIGINT.value} {program}"])


def main() -> None:
    job = start(__file__)
    hook = job.wrapped(interrupt)
    for step, batch in job.batches(steps=200):
        hook(job, step)
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
