"""Samples that loader workers read; a worker of one rank is stopped by a signal."""

import multiprocessing
import os
import signal

from _train.data import BATCH, Sample, Samples
from _train.stamp import stamp
from _train.training import Job


class Records(Samples):
    def __init__(self, job: Job) -> None:
        super().__init__(40 * BATCH)
        is_stopped = job.chosen() and job.plan.even
        self.last = job.plan.step * BATCH + 2 if is_stopped else -1

    def load(self, index: int) -> Sample:
        if index == self.last:
            stamp()
            os.kill(os.getpid(), signal.SIGSTOP)  # <- here
        return super().load(index)  # <- also


def stop_workers(job: Job, step: int) -> None:
    """Stop the workers while they wait for work, as a suspended container does."""
    if job.turn(step) and not job.plan.even:
        stamp()
        for worker in multiprocessing.active_children():
            os.kill(worker.pid or 0, signal.SIGSTOP)
