"""Training on text that a loader worker splits into pieces."""

from _train.training import start
from text import Text


def main() -> None:
    job = start(__file__)
    text = Text(job)
    for step, batch in job.batches(text, workers=1):
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
