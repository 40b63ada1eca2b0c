"""Training with a shift of activations around the ring of ranks every few steps."""

from _train.training import start
from shift import shift_around


def main() -> None:
    job = start(__file__)
    shift = job.wrapped(shift_around)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        shift(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
