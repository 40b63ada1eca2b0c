"""Training that exchanges tokens between experts."""

from _train.training import start
from experts import Experts


def main() -> None:
    job = start(__file__)
    experts = Experts(tokens=6, width=16)
    exchange = job.wrapped(experts.exchange)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        exchange(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
