"""Training whose workers prefetch large samples in a container with the usual 64 MiB."""

from _train.training import start
from volumes import Volumes


def main() -> None:
    job = start(__file__)
    for step, batch in job.batches(Volumes(job), workers=2):
        small = batch[0][:, :64], batch[1]
        loss = job.engine.step(small)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
