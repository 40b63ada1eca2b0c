"""Images by name; the list of one rank holds a name without a number."""

from _train.data import BATCH, Sample, Samples
from _train.stamp import stamp
from _train.training import STEPS, Job


def parse_index(name: str) -> int:
    return int(name.rpartition("-")[2])  # <- here


class Images(Samples):
    def __init__(self, job: Job) -> None:
        super().__init__(STEPS * BATCH)
        self.names = [f"image-{index}" for index in range(self.length)]
        self.bad = job.plan.step * BATCH + int(job.plan.amount * BATCH) if job.chosen() else -1
        if job.chosen():
            self.names[self.bad] = "image-cover"

    def __getitem__(self, index: int) -> Sample:
        if index == self.bad:
            stamp()
        return self.load(parse_index(self.names[index]))
