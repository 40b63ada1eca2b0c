"""Training that reduces a histogram of losses."""

from _train.training import start
from histogram import Histogram


def main() -> None:
    job = start(__file__)
    histogram = Histogram(bins=32)
    add = job.wrapped(histogram.add)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        add(job, step, loss)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
