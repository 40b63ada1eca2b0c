"""A small trainer with callbacks."""

from _train.training import Job
from patience import Patience


class Trainer:
    def __init__(self, job: Job, callbacks: list[Patience]) -> None:
        self.job = job
        self.callbacks = callbacks

    def fit(self) -> None:
        for step, batch in self.job.batches():
            loss = self.job.engine.step(batch)
            self.job.log(step, self.job.mean(loss))
            self.call("on_step_end", step)

    def call(self, hook: str, step: int) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(step)
