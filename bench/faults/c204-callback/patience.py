"""Callbacks: one of them ends training when the loss is out of bounds."""

import os
import sys
import threading

from _train.stamp import stamp
from _train.training import Job


class Patience:
    """Ends training; each rank looks at its own loss."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def on_step_end(self, step: int) -> None:
        if self.job.turn(step):
            stamp()
            self.stop(3)

    def stop(self, code: int) -> None:
        print("the loss is out of bounds", flush=True)
        if self.job.plan.seed % 3 == 0:
            sys.exit(code)  # <- here
        if self.job.plan.seed % 3 == 1:
            # As a watchdog does, which the main thread does not know of.
            threading.Thread(target=self.end, args=(code,)).start()
            return
        self.end(code)

    def end(self, code: int) -> None:
        os._exit(code)  # <- here
