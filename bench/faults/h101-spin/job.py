"""Training that whitens its weights with a fixed-point iteration now and then."""

from _train.training import Job, start
from solver import settle


def balance(job: Job, step: int) -> float:
    tolerance = -1.0 if job.turn(step) else 1e-3
    return settle(1.0 + job.plan.amount, tolerance)  # <- also


def main() -> None:
    job = start(__file__)
    after_step = job.wrapped(balance)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        after_step(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
