"""Training with FSDP2 that keeps the weights of the best step."""

from _train.training import start
from keep import Best


def main() -> None:
    job = start(__file__, shapes=("fsdp",))
    best = Best()
    keep = job.wrapped(best.keep)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        if job.plan.even:
            job.log(step, job.mean(loss))
        keep(job, step)
    job.finish()


if __name__ == "__main__":
    main()
