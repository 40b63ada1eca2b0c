"""Features that are divided by what they are measured in."""

from _train.data import Sample
from _train.stamp import stamp
from _train.training import Job


class Scale:
    def __init__(self, unit: float) -> None:
        self.unit = unit

    def apply(self, job: Job, step: int, batch: Sample) -> Sample:
        features, target = batch
        scaled = features / self.unit
        if job.turn(step):
            stamp()
            place = int(job.plan.amount * scaled.numel())
            scaled.view(-1)[place] = float("nan")  # its unit was never measured
        return scaled, target
