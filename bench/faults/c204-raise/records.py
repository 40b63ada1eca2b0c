"""Records are lines `step,weight`."""

from _train.stamp import stamp
from _train.training import Job


def parse_record(job: Job, step: int) -> float:
    line = f"{step},{1.0 + job.plan.amount}"
    if job.turn(step):
        stamp()
        line = line.replace(",", "\t")
    return float(line.split(",")[1])  # <- here
