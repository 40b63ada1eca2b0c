"""Training with a native helper for the step's statistics."""

from _train.training import start
from native import summarise


def main() -> None:
    job = start(__file__)
    after_step = job.wrapped(summarise)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        after_step(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
