"""Training on images that a loader worker fetches."""

from _train.training import start
from images import Images


def main() -> None:
    job = start(__file__)
    images = Images(job)
    for step, batch in job.batches(images, workers=1):
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
