"""Training with a tokenizer written in C."""

from _train.training import start
from tokenizer import encode


def main() -> None:
    job = start(__file__)
    read = job.wrapped(encode)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        read(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
