"""Training on a field that is split over ranks, with an exchange of edges."""

from _train.training import start
from halo import exchange


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
