"""Training in which a table goes around in parts."""

from _train.training import start
from parts import pass_on


def main() -> None:
    job = start(__file__)
    hand_on = job.wrapped(pass_on)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        hand_on(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
