"""Training that keeps statistics of every batch."""

from _train.training import start
from history import History


def main() -> None:
    job = start(__file__)
    history = History(job)
    keep = job.wrapped(history.keep)
    for step, batch in job.batches(steps=120):
        keep(step, batch)
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
