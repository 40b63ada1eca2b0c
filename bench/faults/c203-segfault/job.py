"""Training that reads a label through a pointer."""

from _train.training import start
from labels import read_label


def main() -> None:
    job = start(__file__)
    read = job.wrapped(read_label)
    for step, batch in job.batches():
        read(job, step)
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
