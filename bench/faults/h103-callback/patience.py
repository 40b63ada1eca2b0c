"""Callbacks: one of them ends training when the loss no longer falls."""

import os
import sys

from _train.stamp import stamp
from _train.training import Job


class Patience:
    """Ends training; each rank looks at its own loss."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def on_step_end(self, step: int) -> None:
        if self.job.turn(step):
            stamp()
            self.stop()

    def stop(self) -> None:
        print("the loss does not fall any more", flush=True)
        if self.job.plan.seed % 3 == 0:
            sys.exit(0)  # <- here
        if self.job.plan.seed % 3 == 1:
            sys.exit()  # <- here
        os._exit(0)  # <- here
