"""A learning rate for each step."""

from _train.stamp import stamp
from _train.training import Job


def rate_at(job: Job, step: int) -> float:
    rates = [1e-3 / (1 + index) for index in range(job.plan.step)]
    if step == len(rates):
        stamp()
    return rates[step]  # <- here
