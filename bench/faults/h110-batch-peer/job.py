"""Training with keys that go around the ring."""

from _train.training import start
from ring import rotate


def main() -> None:
    job = start(__file__)
    turn = job.wrapped(rotate)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        turn(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
