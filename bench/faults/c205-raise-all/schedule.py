"""A learning rate for each step."""

from _train import Job, stamp


def rate_at(job: Job, step: int) -> float:
    rates = [1e-3 / (1 + index) for index in range(job.plan.step)]
    if step == len(rates):
        stamp()
    return rates[step]  # <- here
