"""Training that saves a checkpoint now and then."""

from _train.training import start
from checkpoint import save_checkpoint


def main() -> None:
    job = start(__file__)
    save = job.wrapped(save_checkpoint)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        if step == job.plan.step:
            save(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
