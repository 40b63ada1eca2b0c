"""Training on features of which one is not a number: from the next step on, nothing is."""

from _train.training import start
from features import Scale


def main() -> None:
    job = start(__file__)
    scale = Scale(unit=2.0)
    apply = job.wrapped(scale.apply)
    for step, batch in job.batches():
        loss = job.engine.step(apply(job, step, batch))
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
