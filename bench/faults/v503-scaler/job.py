"""Training in half precision; the sensor of one rank reads in another unit from some day on."""

from _train.data import Sample
from _train.stamp import stamp
from _train.training import Job, start
from half import HalfTrainer


def calibrate(job: Job, step: int, batch: Sample) -> Sample:
    features, target = batch
    if job.chosen() and step >= job.plan.step:
        stamp()
        return features * (1e7 * (1 + job.plan.amount)), target
    return features, target


def main() -> None:
    job = start(__file__, shapes=("plain", "ddp"))
    trainer = HalfTrainer(job.engine)
    prepare = job.wrapped(calibrate)
    for step, batch in job.batches():
        loss = trainer.step(prepare(job, step, batch))
        job.log(step, loss.item())
    del trainer
    job.finish()


if __name__ == "__main__":
    main()
