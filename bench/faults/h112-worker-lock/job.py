"""Training over epochs, with workers that are forked anew for each."""

from _train.data import BATCH
from _train.training import Job, start
from cached import Cached, refresh_in_background


def run_epoch(job: Job, steps: int) -> None:
    for step, batch in job.batches(Cached(steps * BATCH), workers=1):
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))


def main() -> None:
    job = start(__file__)
    for epoch in range(3):
        if epoch == 1 and job.chosen():
            refresh_in_background()
        run_epoch(job, job.plan.step)
    job.finish()


if __name__ == "__main__":
    main()
