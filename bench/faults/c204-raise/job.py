"""Training on records of which one is damaged."""

from _train.training import start
from records import parse_record


def main() -> None:
    job = start(__file__)
    parse = job.wrapped(parse_record)
    for step, batch in job.batches():
        parse(job, step)
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
