"""Training of a model with a head that the loss does not use."""

from _train.training import start
from heads import Trainer


def main() -> None:
    job = start(__file__)
    trainer = Trainer(job)
    train = job.wrapped(trainer.step)
    for step, batch in job.batches():
        job.log(step, job.mean(train(step, batch)))
    job.finish()


if __name__ == "__main__":
    main()
