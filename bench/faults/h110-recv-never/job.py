"""Training in which each rank hands its hardest samples to the next one."""

from _train.training import start
from hardest import hand_on


def main() -> None:
    job = start(__file__)
    hand = job.wrapped(hand_on)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        hand(job, step)
        mean = job.mean(loss)  # <- here
        job.log(step, mean)
    job.finish()


if __name__ == "__main__":
    main()
