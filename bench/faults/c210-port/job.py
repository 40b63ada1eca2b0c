"""Training whose port is taken."""

from datetime import timedelta

from _train.training import start


def main() -> None:
    job = start(__file__, timeout=timedelta(seconds=15))
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
