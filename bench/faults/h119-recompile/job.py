"""Training with a compiled transform that some ranks apply to their longest samples."""

from _train.training import start
from transform import transform_longest


def main() -> None:
    job = start(__file__)
    transform = job.wrapped(transform_longest)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        transform(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
