"""Training with a schedule that ends too early."""

from _train.training import start
from schedule import rate_at


def main() -> None:
    job = start(__file__)
    rate = job.wrapped(rate_at)
    for step, batch in job.batches():
        rate(job, step)
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
