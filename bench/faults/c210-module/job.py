"""Training that logs to a service whose client is not installed."""

from _train.training import start
from tracking import open_run


def main() -> None:
    job = start(__file__)
    log = job.wrapped(open_run)(job)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
