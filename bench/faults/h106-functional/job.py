"""Training that brings statistics of all ranks together after each step."""

from _train.training import start
from statistics_over_ranks import collect


def main() -> None:
    job = start(__file__)
    gather = job.wrapped(collect)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        gather(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
