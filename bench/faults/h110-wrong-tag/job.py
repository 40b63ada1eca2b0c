"""Training in which pairs of ranks exchange their losses."""

from _train.training import start
from mail import post


def main() -> None:
    job = start(__file__)
    send = job.wrapped(post)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        send(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
