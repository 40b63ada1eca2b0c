"""A token bucket that is refilled by steps."""

import time

from _train.stamp import stamp
from _train.training import Job


class Bucket:
    def __init__(self, job: Job) -> None:
        self.tokens = job.plan.step if job.chosen() else 10**6
        self.pause = 0.05

    def take(self, job: Job, step: int) -> None:
        if self.tokens == 0:
            self.refill()
        self.tokens -= 1

    def refill(self) -> None:
        stamp()
        while self.tokens == 0:
            time.sleep(self.pause)  # <- here
            self.pause *= 1.5
