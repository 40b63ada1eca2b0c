"""Samples whose text is cut at separators."""

from _train.data import BATCH, Sample, Samples
from _train.stamp import stamp
from _train.training import Job


class Text(Samples):
    def __init__(self, job: Job) -> None:
        super().__init__(40 * BATCH)
        self.bad = job.plan.step * BATCH + 1 if job.chosen() else -1

    def load(self, index: int) -> Sample:
        line = "a b c d e f g " * 4
        if index == self.bad:
            stamp()
            line = "x" * (10 + len(line) // 2)
        pieces(line)  # <- also
        return super().load(index)


def pieces(line: str) -> list[str]:
    found: list[str] = []
    start = 0
    while start < len(line):  # <- here
        end = line.find(" ", start)  # <- here
        if end < 0:  # <- here
            continue  # <- here
        found.append(line[start:end])
        start = end + 1
    return found
