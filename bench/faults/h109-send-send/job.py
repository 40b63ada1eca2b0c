"""Training in which neighbours exchange a part of their state now and then."""

from _train.training import start
from exchange import exchange


def main() -> None:
    job = start(__file__)
    swap = job.wrapped(exchange)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        swap(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
